// SPDX-License-Identifier: Apache-2.0
#include "abandoned.hpp"

namespace backplane::mpi {

void AbandonedRequests::add(PendingRequests& pending) noexcept {
  if (pending.front().request == Request{}) return;
  const std::lock_guard lock(mutex_);
  waiting_.splice(waiting_.end(), pending);
  ++count_;
}

size_t AbandonedRequests::reap(Api& api) {
  if (count_.load(std::memory_order_relaxed) == 0) return 0;
  const std::lock_guard lock(mutex_);
  for (auto abandoned = waiting_.begin(); abandoned != waiting_.end();) {
    const auto next = std::next(abandoned);
    try {
      api.test(abandoned->request);
      if (abandoned->request == Request{}) waiting_.erase(abandoned);
    } catch (const sdk::Failure&) {
      const bool is_freed = abandoned->request == Request{};
      is_freed ? (void)waiting_.erase(abandoned) : failed_.splice(failed_.end(), waiting_, abandoned);
    }
    abandoned = next;
  }
  count_ = waiting_.size() + failed_.size();
  return count_;
}

}  // namespace backplane::mpi
