// SPDX-License-Identifier: Apache-2.0
#include "operation.hpp"

#include <sys/eventfd.h>

#include <utility>

namespace backplane::zmq_plugin {

void Operation::finish() {
  done = true;
  if (waiter != nullptr) waiter->notify_one();
  notice.give();
}

void Operation::fail(const sdk::Failure& why) {
  if (done) return;
  failure.emplace(why);
  finish();
}

void Releases::release(const OperationPtr& send) {
  if (send->lent.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  {
    const std::lock_guard lock(mutex_);
    released_.push_back(send);
    any_.store(true, std::memory_order_release);
  }
  eventfd_write(wake_fd_, 1);
}

std::vector<OperationPtr> Releases::take() {
  if (!any_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  any_.store(false, std::memory_order_release);
  return std::exchange(released_, {});
}

}  // namespace backplane::zmq_plugin
