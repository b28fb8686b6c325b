// SPDX-License-Identifier: Apache-2.0
#include "waiting.hpp"

#include <algorithm>

namespace backplane::shm {
namespace {

constexpr int64_t kNap = 50'000'000;  // nanoseconds; how often a sleeper looks for the dead

}  // namespace

bool Waiting::nap(uint32_t rings, int64_t left_ns) noexcept {
  if (left_ns == 0) return false;
  futex_wait(bell_.rings, rings, left_ns < 0 ? kNap : std::min(left_ns, kNap));
  if (peers_ != nullptr) peers_->look_for_dead();
  return bell_.rings.load() != rings;
}

void Waiting::abort(const sdk::Failure& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!why_) why_.emplace(why);
  }
  aborted_.store(true);
  bell_.rings.fetch_add(1);
  futex_wake_all(bell_.rings);
}

void Waiting::throw_why() const {
  const std::lock_guard lock(mutex_);
  throw sdk::Failure(*why_);
}

}  // namespace backplane::shm
