// SPDX-License-Identifier: Apache-2.0
//
// Element types, reduce operations, buffers and time limits, and their mapping to those of the C API.
#pragma once

#include <chrono>
#include <complex>
#include <concepts>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>

#include "backplane/backplane.h"

namespace backplane {

enum class DType : uint32_t {
  kBool = BP_BOOL,
  kI8 = BP_I8,
  kU8 = BP_U8,
  kI16 = BP_I16,
  kU16 = BP_U16,
  kI32 = BP_I32,
  kU32 = BP_U32,
  kI64 = BP_I64,
  kU64 = BP_U64,
  kF16 = BP_F16,
  kBF16 = BP_BF16,
  kF32 = BP_F32,
  kF64 = BP_F64,
  kF8E4M3 = BP_F8E4M3,
  kF8E5M2 = BP_F8E5M2,
  kC64 = BP_C64,
  kC128 = BP_C128,
};

// backplane/abi/types.h defines the result of each for each dtype.
enum class ReduceOp : uint32_t {
  kSum = BP_SUM,
  kProd = BP_PROD,
  kMin = BP_MIN,
  kMax = BP_MAX,
  kAvg = BP_AVG,
  kBitAnd = BP_BAND,
  kBitOr = BP_BOR,
  kBitXor = BP_BXOR,
};

// 16- and 8-bit floats as bit patterns. They have no arithmetic of their own; operations send and reduce them.
struct Half {
  uint16_t bits = 0;
};
struct BFloat16 {
  uint16_t bits = 0;
};
struct Float8E4M3 {
  uint8_t bits = 0;
};
struct Float8E5M2 {
  uint8_t bits = 0;
};

namespace detail {

template <typename T>
constexpr std::optional<DType> dtype_of() {
  if constexpr (std::is_same_v<T, bool>) return DType::kBool;
  if constexpr (std::is_same_v<T, std::byte>) return DType::kU8;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    constexpr bool kSigned = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1) return kSigned ? DType::kI8 : DType::kU8;
    if constexpr (sizeof(T) == 2) return kSigned ? DType::kI16 : DType::kU16;
    if constexpr (sizeof(T) == 4) return kSigned ? DType::kI32 : DType::kU32;
    if constexpr (sizeof(T) == 8) return kSigned ? DType::kI64 : DType::kU64;
  }
  if constexpr (std::is_same_v<T, Half>) return DType::kF16;
  if constexpr (std::is_same_v<T, BFloat16>) return DType::kBF16;
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  if constexpr (std::is_same_v<T, Float8E4M3>) return DType::kF8E4M3;
  if constexpr (std::is_same_v<T, Float8E5M2>) return DType::kF8E5M2;
  if constexpr (std::is_same_v<T, std::complex<float>>) return DType::kC64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return DType::kC128;
  return std::nullopt;
}

}  // namespace detail

// A C++ type that has a dtype.
template <typename T>
concept Element = detail::dtype_of<std::remove_const_t<T>>()
.has_value();

template <Element T>
inline constexpr DType dtype_of = *detail::dtype_of<std::remove_const_t<T>>();

// Bytes of one element.
inline uint64_t size_of(DType dtype) { return bp_dtype_size(static_cast<uint32_t>(dtype)); }

// "f32" for kF32.
inline std::string name_of(DType dtype) { return bp_dtype_name(static_cast<uint32_t>(dtype)); }
inline std::string name_of(ReduceOp op) { return bp_reduce_op_name(static_cast<uint32_t>(op)); }

// The memory that holds a buffer.
struct Device {
  uint32_t memory = BP_HOST;  // BP_HOST or BP_CUDA
  int ordinal = 0;            // of the CUDA device, as the CUDA runtime counts them; 0 for host memory

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int ordinal) { return {BP_CUDA, ordinal}; }
  bool operator==(const Device&) const = default;
};

namespace detail {

// A contiguous range of elements that have a dtype. An rvalue is one only if its elements outlive it: a span or a view.
template <typename R>
concept ElementRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    std::ranges::borrowed_range<R> && Element<std::ranges::range_value_t<R>>;
template <typename R>
concept MutableElementRange =
    ElementRange<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

}  // namespace detail

// `count` elements of one dtype in one memory, to be written: an output, or an input and output in one. Does not own
// them: the caller keeps them alive and untouched until the operation is done. Converts from contiguous ranges of
// mutable elements: vectors, arrays, spans, Memory. A temporary that owns its elements does not compile, because an
// asynchronous operation would outlive them.
class Buffer {
 public:
  Buffer() = default;
  // `count` is in elements. `data` must not be NULL unless `count` is 0 or the call says that the buffer may be empty.
  Buffer(void* data, uint64_t count, DType dtype, Device device = {})
      : data_(data), count_(count), dtype_(dtype), device_(device) {}
  template <detail::MutableElementRange R>
  Buffer(R&& range)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload): a conversion
      : Buffer(std::ranges::data(range), std::ranges::size(range), dtype_of<std::ranges::range_value_t<R>>) {}

  void* data() const { return data_; }
  uint64_t count() const { return count_; }  // elements
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }

 private:
  void* data_ = nullptr;
  uint64_t count_ = 0;
  DType dtype_ = DType::kU8;
  Device device_;
};

// The same, to be read only: an input. Converts from contiguous ranges of const or mutable elements, and from Buffer.
class ConstBuffer {
 public:
  ConstBuffer() = default;
  ConstBuffer(const void* data, uint64_t count, DType dtype, Device device = {})
      : data_(data), count_(count), dtype_(dtype), device_(device) {}
  template <detail::ElementRange R>
  ConstBuffer(R&& range)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload): a conversion
      : ConstBuffer(std::ranges::data(range), std::ranges::size(range), dtype_of<std::ranges::range_value_t<R>>) {}
  ConstBuffer(const Buffer& buffer)  // NOLINT(google-explicit-constructor): conversion is its purpose
      : ConstBuffer(buffer.data(), buffer.count(), buffer.dtype(), buffer.device()) {}

  const void* data() const { return data_; }
  uint64_t count() const { return count_; }  // elements
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }

 private:
  const void* data_ = nullptr;
  uint64_t count_ = 0;
  DType dtype_ = DType::kU8;
  Device device_;
};

// One variable as a buffer of one element: a Buffer, or a ConstBuffer if the variable is const. A temporary does not
// compile.
template <Element T>
auto as_buffer(T& value) {
  return std::conditional_t<std::is_const_v<T>, ConstBuffer, Buffer>(&value, 1, dtype_of<T>);
}
template <Element T>
void as_buffer(const T&& value) = delete;

// A time limit in nanoseconds. 0 does not wait. kDefaultTimeout is the limit of the group, worker or parent. kNoTimeout
// sets none.
using Timeout = std::chrono::nanoseconds;
inline constexpr Timeout kDefaultTimeout{BP_INHERIT_TIMEOUT};
inline constexpr Timeout kNoTimeout{BP_NO_TIMEOUT};

}  // namespace backplane
