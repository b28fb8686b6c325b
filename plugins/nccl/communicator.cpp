// SPDX-License-Identifier: Apache-2.0
#include "communicator.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "backplane/base/deadline.hpp"
#include "backplane/sdk/failure.hpp"
#include "backplane/sdk/worker.hpp"
#include "device.hpp"

namespace backplane::nccl {

Communicator::Communicator(const Api& api, int device, const ncclUniqueId& id, int rank, int size, int max_ctas)
    : api_(api) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (max_ctas > 0) config.maxCTAs = max_ctas;
  const OnDevice here(api, device);
  const sdk::SignalsBlocked blocked;  // for the threads that NCCL starts
  const ncclResult_t result = api.nccl.comm_init_rank_config(&comm_, size, id, rank, &config);
  if (result == ncclSuccess || result == ncclInProgress) return;
  abort();
  check(api, result, "creating a communicator");
}

Communicator::~Communicator() { abort(); }

ncclUniqueId Communicator::new_id(const Api& api) {
  ncclUniqueId id;
  const sdk::SignalsBlocked blocked;  // for the thread that NCCL starts
  check(api, api.nccl.get_unique_id(&id), "creating the id of a communicator");
  return id;
}

bool Communicator::ready() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) throw sdk::Failure(BP_CANCELLED, "nccl: the communicator has been aborted");
  ncclResult_t state = ncclSuccess;
  check(api_, api_.nccl.comm_get_async_error(comm_, &state), "getting the state of a communicator", comm_);
  if (state == ncclInProgress) return false;
  check(api_, state, "NCCL reports", comm_);
  return true;
}

ncclComm_t Communicator::handle() {
  const std::lock_guard lock(mutex_);
  return comm_;
}

void Communicator::issue(const std::function<void(ncclComm_t)>& body) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) throw sdk::Failure(BP_CANCELLED, "nccl: the communicator has been aborted");
  check(api_, api_.nccl.group_start(), "beginning an operation", comm_);
  try {
    body(comm_);
  } catch (...) {
    api_.nccl.group_end();
    throw;
  }
  check(api_, api_.nccl.group_end(), "starting an operation", comm_);
}

bool Communicator::run_if_idle(const std::function<void(ncclComm_t)>& body) {
  const std::lock_guard lock(mutex_);
  ncclResult_t state = ncclInternalError;
  if (comm_ == nullptr || api_.nccl.comm_get_async_error(comm_, &state) != ncclSuccess) return true;
  if (state == ncclInProgress) return false;
  if (state == ncclSuccess) body(comm_);
  return true;
}

void Communicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) api_.nccl.comm_abort(std::exchange(comm_, nullptr));
}

void Communicator::close(int64_t timeout_ns) noexcept {
  const base::Deadline deadline = base::Deadline::after(timeout_ns);
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  // Its final state, or ncclInProgress at the deadline.
  const auto settled = [this, &deadline] {
    ncclResult_t state = ncclInProgress;
    for (auto pause = std::chrono::microseconds(10);; pause = std::min(2 * pause, std::chrono::microseconds(1000))) {
      if (api_.nccl.comm_get_async_error(comm_, &state) != ncclSuccess) return ncclInternalError;
      if (state != ncclInProgress || deadline.passed()) return state;
      std::this_thread::sleep_for(pause);
    }
  };
  ncclResult_t state = settled();
  if (state == ncclSuccess) {
    state = api_.nccl.comm_finalize(comm_);
    if (state == ncclInProgress) state = settled();
  }
  if (state == ncclSuccess) {
    api_.nccl.comm_destroy(std::exchange(comm_, nullptr));
  } else {
    api_.nccl.comm_abort(std::exchange(comm_, nullptr));
  }
}

}  // namespace backplane::nccl
