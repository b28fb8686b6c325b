// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <algorithm>

namespace backplane::shm {

bool Waiter::sleep(uint32_t rings, int64_t left_ns) noexcept {
  if (left_ns == 0) return false;
  futex_wait(doorbell_.rings, rings, left_ns < 0 ? kMaxSleepNs : std::min(left_ns, kMaxSleepNs));
  if (peers_ != nullptr) peers_->check_liveness();
  return doorbell_.rings.load() != rings;
}

bool Waiter::yields_to_others() {
  constexpr std::chrono::microseconds kSwitch{1};  // a yield is shorter if no other thread is ready to run
  const sdk::SpinPolicy::Clock::time_point now = sdk::SpinPolicy::Clock::now();
  if (yields_.limit().count() == 0 || !yields_.is_worthwhile(now)) return false;
  return yields_.yield(now) - now >= kSwitch;
}

void Waiter::abort(const sdk::Failure& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!why_) why_.emplace(why);
  }
  aborted_.store(true);
  doorbell_.rings.fetch_add(1);
  futex_wake_all(doorbell_.rings);
}

void Waiter::throw_why() const {
  const std::lock_guard lock(mutex_);
  throw sdk::Failure(*why_);
}

}  // namespace backplane::shm
