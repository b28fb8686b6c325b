// SPDX-License-Identifier: Apache-2.0
#include "fate.hpp"

#include <chrono>

namespace backplane::nccl {

bool Fate::decide(const sdk::Failure& why) {
  const std::lock_guard lock(mutex_);
  if (why_) return false;
  why_.emplace(why);
  decided_.store(true, std::memory_order_release);
  return true;
}

sdk::Failure Fate::why() const {
  const std::lock_guard lock(mutex_);
  return why_.value();
}

void Fate::throw_if_decided() const {
  if (decided()) throw why();
}

void Fate::settle() {
  const std::lock_guard lock(mutex_);
  settled_ = true;
  changed_.notify_all();
}

void Fate::await_settled() const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), [this] { return settled_; });
}

}  // namespace backplane::nccl
