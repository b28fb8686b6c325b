// SPDX-License-Identifier: Apache-2.0
#include "fate.hpp"

#include <algorithm>

namespace backplane::nccl {

using Clock = std::chrono::steady_clock;

bool Fate::decide(const sdk::Failure& why) { return set(why, false); }

void Fate::overrule(const sdk::Failure& why) { set(why, true); }

bool Fate::set(const sdk::Failure& why, bool overrules) {
  {
    const std::lock_guard lock(mutex_);
    const bool is_first = !why_ && !verdict_;
    std::optional<sdk::Failure>& place = overrules ? verdict_ : why_;
    if (!place && (overrules || is_first)) place.emplace(why);
    if (!is_first) return false;
    patient_until_ = Clock::now() + std::chrono::nanoseconds(kPatience);
    decided_.store(true, std::memory_order_release);
  }
  wake_();
  return true;
}

sdk::Failure Fate::why() const {
  const std::lock_guard lock(mutex_);
  return verdict_ ? *verdict_ : why_.value();
}

void Fate::throw_if_decided() const {
  if (decided()) throw why();
}

void Fate::settle() {
  const std::lock_guard lock(mutex_);
  settled_ = true;
  changed_.notify_all();
}

bool Fate::await_settled(int64_t timeout_ns) const {
  std::unique_lock lock(mutex_);
  auto until = patient_until_;
  if (timeout_ns >= 0) {
    until = std::min(until, Clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, kPatience)));
  }
  if (changed_.wait_until(lock, until, [this] { return settled_; })) return true;
  return Clock::now() >= patient_until_;
}

}  // namespace backplane::nccl
