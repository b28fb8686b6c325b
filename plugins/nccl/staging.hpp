// SPDX-License-Identifier: Apache-2.0
//
// Device memory that stands in for the host buffers of a collective.
#pragma once

#include "backplane/abi/op.h"
#include "device.hpp"

namespace backplane::nccl {

class Staging {
 public:
  // Replaces the host buffers of *op by device memory, and copies in what the operation reads or leaves as it is, in
  // the order of the stream. Does nothing if there are none. A buffer in place stays in place.
  Staging(const Api& api, DevicePool& pool, bp_op* op, cudaStream_t stream);
  // Copies the result to the host buffer, in the order of the stream.
  void bring_back(cudaStream_t stream);

 private:
  void copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind, cudaStream_t stream) const;

  const Api& api_;
  DeviceBuffer input_;
  DeviceBuffer output_;  // empty if the output lies within the input, or there is none
  void* host_output_ = nullptr;
  void* device_output_ = nullptr;
  uint64_t output_bytes_ = 0;
};

}  // namespace backplane::nccl
