// SPDX-License-Identifier: Apache-2.0
//
// A non-blocking NCCL communicator: calls return at once, and `ready` tells whether they have taken effect.
#pragma once

#include <functional>
#include <mutex>

#include "api.hpp"

namespace backplane::nccl {

class Communicator {
 public:
  // Starts to create it; does not block. `id`: from new_id on rank 0. `max_ctas`: limit of NCCL's thread blocks on the
  // device; 0: none.
  Communicator(const Api& api, int device, const ncclUniqueId& id, int rank, int size, int max_ctas);
  // Aborts it, unless it was closed.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  static ncclUniqueId new_id(const Api& api);

  // False: the last call is still taking effect, as while peers connect. Throws errors that NCCL has found since.
  // Thread-safe.
  bool ready();
  // Calls `body` between ncclGroupStart and ncclGroupEnd; NCCL's calls in it are one operation. Call only if ready, on
  // a thread that uses the communicator's device. Thread-safe.
  void issue(const std::function<void(ncclComm_t)>& body);
  // NCCL's handle, valid until abort or close; null afterwards.
  ncclComm_t handle();
  // Stops all operations. Later calls of ready and issue throw. Thread-safe; blocks as long as NCCL does.
  void abort() noexcept;
  // Waits up to timeout_ns for operations to end and destroys it, or aborts it at the deadline.
  void close(int64_t timeout_ns) noexcept;
  // Calls `body` for work outside of operations, such as registration, if NCCL is not launching. Returns true without
  // the call if the communicator has ended or failed. False: NCCL is busy, try again later. Thread-safe.
  bool run_if_idle(const std::function<void(ncclComm_t)>& body);

 private:
  const Api& api_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace backplane::nccl
