// SPDX-License-Identifier: Apache-2.0
#include "failure.hpp"

#include <algorithm>

#include "backplane/base/grace.hpp"

namespace backplane::nccl {

bool GroupFailure::set(const sdk::Failure& cause, bool by_core) {
  {
    const std::lock_guard lock(mutex_);  // a thread that sees is_set then sees the deadline
    if (!(by_core ? first_.raise_by_core(cause) : first_.raise(cause))) return false;
    stop_deadline_ = base::Deadline::after(base::grace::kDeviceStop);
  }
  stop_device_();
  return true;
}

void GroupFailure::set_device_stopped() {
  const std::lock_guard lock(mutex_);
  device_stopped_ = true;
  changed_.notify_all();
}

bool GroupFailure::device_stopped() const {
  const std::lock_guard lock(mutex_);
  return device_stopped_;
}

bool GroupFailure::await_device_stopped(int64_t timeout_ns) const {
  std::unique_lock lock(mutex_);
  const base::Deadline until = std::min(stop_deadline_, base::Deadline::after(timeout_ns));
  if (changed_.wait_until(lock, until.at(), [this] { return device_stopped_; })) return true;
  return stop_deadline_.passed();
}

}  // namespace backplane::nccl
