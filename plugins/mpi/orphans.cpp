// SPDX-License-Identifier: Apache-2.0
#include "orphans.hpp"

namespace backplane::mpi {

void Orphans::add(Held& held) noexcept {
  if (held.front().request == Request{}) return;
  const std::lock_guard lock(mutex_);
  waiting_.splice(waiting_.end(), held);
  ++count_;
}

size_t Orphans::reap(Api& api) {
  if (count_.load(std::memory_order_relaxed) == 0) return 0;
  const std::lock_guard lock(mutex_);
  for (auto orphan = waiting_.begin(); orphan != waiting_.end();) {
    const auto next = std::next(orphan);
    try {
      api.test(orphan->request);
      if (orphan->request == Request{}) waiting_.erase(orphan);
    } catch (const sdk::Failure&) {
      const bool is_freed = orphan->request == Request{};
      is_freed ? (void)waiting_.erase(orphan) : failed_.splice(failed_.end(), waiting_, orphan);
    }
    orphan = next;
  }
  count_ = waiting_.size() + failed_.size();
  return count_;
}

}  // namespace backplane::mpi
