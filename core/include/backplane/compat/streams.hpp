// SPDX-License-Identifier: Apache-2.0
//
// A stream per thread and device: _register_stream of the first torch.distributed.
//
//     compat::register_stream(stream, Device::cuda(0));
//     group.all_reduce(gradient, ReduceOp::kSum, {.stream = compat::registered_stream(Device::cuda(0))});
#pragma once

#include <cstddef>
#include <vector>

#include "backplane/types.hpp"

namespace backplane {
namespace detail {
inline thread_local std::vector<void*> registered_streams;  // by device ordinal
}  // namespace detail

namespace compat {

// Registers `stream` (cudaStream_t) for the calling thread and a CUDA device; nullptr: the device's default stream. The
// caller keeps owning the stream, and must register another one before destroying it. _multigpu calls use it by
// themselves; other calls are passed it as CallOptions::stream.
inline void register_stream(void* stream, Device device) {
  const auto at = static_cast<size_t>(device.ordinal);
  if (detail::registered_streams.size() <= at) detail::registered_streams.resize(at + 1);
  detail::registered_streams[at] = stream;
}

// The stream that this thread registered for a device; nullptr if there is none. Fits CallOptions::stream.
inline void* registered_stream(Device device) {
  const auto at = static_cast<size_t>(device.ordinal);
  return device.memory == BP_CUDA && at < detail::registered_streams.size() ? detail::registered_streams[at] : nullptr;
}

}  // namespace compat
}  // namespace backplane
