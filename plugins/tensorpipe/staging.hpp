// SPDX-License-Identifier: Apache-2.0
//
// Buffers in the memory of CUDA devices, which TensorPipe as Debian builds it does not carry: they travel as host
// memory. A sender copies them there, a receiver into memory of the device that the maps name; either on a thread of
// its own, since a copy waits for the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backplane/base/executor.hpp"
#include "backplane/sdk/block.hpp"
#include "backplane/sdk/rpc.hpp"
#include "cuda.hpp"
#include "device_maps.hpp"
#include "message.hpp"

namespace backplane::tensorpipe {

class Staging {
 public:
  // Starts its threads only if a map has to do with this worker. `workers` in the order of their ranks; `over`: the
  // agent has ended. Throws sdk::Failure.
  Staging(const std::vector<WorkerDevices>& workers, int32_t rank, std::shared_ptr<sdk::BlockPool> memory,
          const std::atomic<bool>& over);

  // Has it buffers in devices' memory? Throws sdk::Failure (BP_INVALID) if one is on a device that no map names for
  // worker `to`.
  bool concerns(const sdk::RpcMessage& message, int32_t to) const;
  // The devices of this worker into whose memory worker `from` may send.
  const DeviceSet& open_to(int32_t from) const { return ways_[static_cast<size_t>(from)].in; }

  // Copies the buffers to the host, then calls `next`, on one thread, with what could not be done. In this order.
  void copy_out(std::shared_ptr<Outgoing> message, int32_t to, std::function<void(const sdk::Failure* failure)> next);
  // Puts what has arrived for devices there; likewise, on another thread. `next` keeps the arrival.
  void place(Arrival& arrival, std::function<void(const sdk::Failure* failure)> next);
  // Nothing is called any more. What is left undone goes.
  void stop();

 private:
  struct Way {
    std::string name;  // of the worker to which it leads
    DeviceMap out;     // device here to device there
    DeviceSet in;      // devices here
  };
  // One thread each, from the start on, so that add does not fail.
  struct Copiers {
    base::Executor out{1, base::Executor::AtStop::kDropQueued};
    base::Executor in{1, base::Executor::AtStop::kDropQueued};
  };

  Staged staged(const sdk::RpcMessage& message, const DeviceMap& map);

  const std::string name_;
  const std::shared_ptr<sdk::BlockPool> memory_;
  const std::atomic<bool>& over_;
  std::vector<Way> ways_;
  CudaDevices devices_;
  std::optional<Copiers> copiers_;  // last: their threads use all of the above
};

}  // namespace backplane::tensorpipe
