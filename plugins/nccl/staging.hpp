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
  // the order of the stream. Does nothing if there are none. A buffer in place stays in place. Does not wait for the
  // stream.
  Staging(const Api& api, Pool& pool, bp_op* op, cudaStream_t stream);
  // Has the result brought to the host, in the order of the stream.
  void bring_back(cudaStream_t stream);
  // Puts it into the caller's buffer: when the stream has come past that.
  void finish() const;

 private:
  // A buffer's stand-ins.
  struct Twin {
    Piece device;
    Piece host;
  };
  Twin twin(Pool& pool, uint64_t bytes) const;
  void copy_in(const Twin& twin, const void* from, uint64_t bytes, cudaStream_t stream) const;

  const Api& api_;
  Twin input_;
  Twin output_;  // empty if the output lies within the input, or there is none
  std::byte* caller_output_ = nullptr;
  std::byte* device_output_ = nullptr;
  std::byte* host_output_ = nullptr;
  uint64_t output_bytes_ = 0;
};

}  // namespace backplane::nccl
