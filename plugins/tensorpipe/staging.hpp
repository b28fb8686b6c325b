// SPDX-License-Identifier: Apache-2.0
//
// Staging of CUDA device buffers through host memory, since Debian's TensorPipe has no CUDA channel. The sender copies
// them to the host, the receiver to the device that the maps name, each on a thread of its own, because a copy waits
// for the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backplane/base/executor.hpp"
#include "backplane/sdk/block.hpp"
#include "backplane/sdk/rpc.hpp"
#include "device.hpp"
#include "device_maps.hpp"
#include "wire.hpp"

namespace backplane::tensorpipe {

class Staging {
 public:
  // Starts threads only if a map names this worker or another's device for it. `workers` by rank. `is_stopped`: the
  // agent has ended. Throws sdk::Failure.
  Staging(const std::vector<WorkerDevices>& workers, int32_t rank, std::shared_ptr<sdk::BlockPool> memory,
          const std::atomic<bool>& is_stopped);

  // Whether the message has device buffers. Throws sdk::Failure (BP_INVALID) if one is on a device without a map for
  // worker `to`.
  bool needs_staging(const sdk::RpcMessage& message, int32_t to) const;
  // The devices of this worker to which worker `from` may send.
  const DeviceSet& allowed_devices(int32_t from) const { return routes_[static_cast<size_t>(from)].in; }

  // Copies the buffers to the host, then calls `next` with the failure, if any. In order, on one thread.
  void copy_to_host_async(std::shared_ptr<Outgoing> message, int32_t to,
                          std::function<void(const sdk::Failure* failure)> next);
  // Copies received buffers to devices, then calls `next`. In order, on another thread. `next` keeps `received` alive.
  void place(IncomingMessage& received, std::function<void(const sdk::Failure* failure)> next);
  // No callback runs afterwards. Pending tasks are discarded.
  void stop();

 private:
  struct DeviceRoute {
    std::string name;  // of the remote worker
    DeviceMap out;     // local device to remote device
    DeviceSet in;      // local devices
  };
  // One thread each, from the start on, so that add does not fail.
  struct Copiers {
    base::Executor out{1, base::Executor::AtStop::kDropQueued};
    base::Executor in{1, base::Executor::AtStop::kDropQueued};
  };

  Staged staged(const sdk::RpcMessage& message, const DeviceMap& map);

  const std::string name_;
  const std::shared_ptr<sdk::BlockPool> memory_;
  const std::atomic<bool>& is_stopped_;
  std::vector<DeviceRoute> routes_;
  CudaDevices devices_;
  std::unique_ptr<Copiers> copiers_;  // last: its threads use the fields above
};

}  // namespace backplane::tensorpipe
