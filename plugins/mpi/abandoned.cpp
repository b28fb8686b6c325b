// SPDX-License-Identifier: Apache-2.0
#include "abandoned.hpp"

#include <algorithm>

namespace backplane::mpi {
namespace {

PendingRequests& kept_requests() {
  thread_local PendingRequests kept;
  return kept;
}

}  // namespace

OwnRequests::~OwnRequests() {
  constexpr size_t kMost = 16;
  const auto in_flight = [](const PendingRequest& each) { return each.request != Request{}; };
  if (std::any_of(list_.begin(), list_.end(), in_flight)) abandoned_.add(list_);
  PendingRequests& kept = kept_requests();
  while (!list_.empty() && kept.size() < kMost) {
    PendingRequest& each = list_.front();
    each.in.reset();
    each.out.reset();
    each.blocks.reset();
    kept.splice(kept.begin(), list_, list_.begin());
  }
}

PendingRequest& OwnRequests::add(size_t count) {
  PendingRequests& kept = kept_requests();
  for (; count > 0 && !kept.empty(); --count) list_.splice(list_.end(), kept, kept.begin());
  for (; count > 0; --count) list_.emplace_back();
  return list_.back();
}

void AbandonedRequests::add(PendingRequests& pending) noexcept {
  pending.remove_if([](const PendingRequest& each) { return each.request == Request{}; });
  if (pending.empty()) return;
  const std::lock_guard lock(mutex_);
  count_ += pending.size();
  waiting_.splice(waiting_.end(), pending);
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
