// SPDX-License-Identifier: Apache-2.0
//
// A non-blocking NCCL communicator: each call on it returns at once, and `ready` says whether it has taken effect.
#pragma once

#include <functional>
#include <mutex>

#include "api.hpp"

namespace backplane::nccl {

class Communicator {
 public:
  // Begins to make it, on that device; rank 0's `id` comes from new_id. Does not block. `max_ctas`: how many blocks of
  // the device NCCL may use, 0: as it likes.
  Communicator(const Api& api, int device, const ncclUniqueId& id, int rank, int size, int max_ctas);
  // Aborts it, unless it was closed.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  static ncclUniqueId new_id(const Api& api);

  // False: the last call is still taking effect (peers connect). Throws what NCCL found wrong meanwhile. Any thread.
  bool ready();
  // Calls `body` with the communicator between ncclGroupStart and ncclGroupEnd; NCCL's calls in it are one operation.
  // Only if ready. Any thread that is on its device.
  void issue(const std::function<void(ncclComm_t)>& body);
  // Of NCCL; valid until abort or close. Null then.
  ncclComm_t handle();
  // Stops all that it does. Later calls of ready and issue throw. Any thread; as long as NCCL takes.
  void abort() noexcept;
  // Ends it in order: what is under way comes to its end, but for no longer than timeout_ns. Then aborts.
  void close(int64_t timeout_ns) noexcept;
  // Calls `body` with the communicator for what belongs to no operation (a registration), while NCCL does nothing with
  // it. Of one that has ended or failed nothing is left to change: true, without a call. False: NCCL is at it, try
  // again later. Any thread.
  bool use(const std::function<void(ncclComm_t)>& body);

 private:
  const Api& api_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace backplane::nccl
