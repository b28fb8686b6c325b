// SPDX-License-Identifier: Apache-2.0
//
// DLPack tensors as buffers, without a copy.
#pragma once

#include <dlpack/dlpack.h>

#include <string>

#include "backplane/error.hpp"
#include "backplane/types.hpp"

namespace backplane {

namespace detail {

// Codes of DLPack 1.0 and 1.1, which an older dlpack.h does not name.
inline constexpr int kDlpackBool = 6;
inline constexpr int kDlpackF8E4M3 = 10;  // kDLFloat8_e4m3fn
inline constexpr int kDlpackF8E5M2 = 12;

[[noreturn]] inline void refuse_tensor(const std::string& why) {
  fail(Status::kInvalid, "this DLPack tensor cannot be used: " + why);
}

inline DType dlpack_dtype(const DLDataType& type) {
  if (type.lanes != 1) refuse_tensor("it has vector elements");
  const int bits = type.bits;
  switch (type.code) {
    case kDLInt:
      if (bits == 8) return DType::kI8;
      if (bits == 16) return DType::kI16;
      if (bits == 32) return DType::kI32;
      if (bits == 64) return DType::kI64;
      break;
    case kDLUInt:
      if (bits == 8) return DType::kU8;
      if (bits == 16) return DType::kU16;
      if (bits == 32) return DType::kU32;
      if (bits == 64) return DType::kU64;
      break;
    case kDLFloat:
      if (bits == 16) return DType::kF16;
      if (bits == 32) return DType::kF32;
      if (bits == 64) return DType::kF64;
      break;
    case kDLBfloat:
      if (bits == 16) return DType::kBF16;
      break;
    case kDlpackBool:
      if (bits == 8) return DType::kBool;
      break;
    case kDlpackF8E4M3:
      if (bits == 8) return DType::kF8E4M3;
      break;
    case kDlpackF8E5M2:
      if (bits == 8) return DType::kF8E5M2;
      break;
    case kDLComplex:
      if (bits == 64) return DType::kC64;
      if (bits == 128) return DType::kC128;
      break;
    default:
      break;
  }
  refuse_tensor("dtype code " + std::to_string(type.code) + " with " + std::to_string(bits) +
                " bits has no counterpart");
}

}  // namespace detail

// The elements of a tensor. The tensor must be contiguous in row-major order, in host or CUDA memory; Status::kInvalid
// otherwise. It keeps owning the elements and must outlive the operations on the buffer. DLTensor does not say whether
// it is read-only: do not pass the buffer of such a tensor as an output.
inline Buffer buffer_of(const DLTensor& tensor) {
  uint64_t count = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] < 0) detail::refuse_tensor("it has a negative shape");
    const bool matters = tensor.shape[i] != 1;
    if (matters && tensor.strides != nullptr && tensor.strides[i] != static_cast<int64_t>(count)) {
      detail::refuse_tensor("it is not contiguous; make it so first");
    }
    count *= static_cast<uint64_t>(tensor.shape[i]);
  }
  Device device;
  if (tensor.device.device_type == kDLCUDA) {
    device = Device::cuda(tensor.device.device_id);
  } else if (tensor.device.device_type != kDLCPU && tensor.device.device_type != kDLCUDAHost) {
    detail::refuse_tensor("device type " + std::to_string(tensor.device.device_type) + " is not supported");
  }
  return Buffer(static_cast<char*>(tensor.data) + tensor.byte_offset, count, detail::dlpack_dtype(tensor.dtype),
                device);
}

}  // namespace backplane
