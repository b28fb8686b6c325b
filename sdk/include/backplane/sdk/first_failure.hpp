// SPDX-License-Identifier: Apache-2.0
//
// The reason why a group failed: the first one on this rank, until the core gives another one with an abort. The core's
// takes precedence, because the failure on this rank may be a consequence: a peer also closes its connection because
// another one failed. Thread-safe.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "failure.hpp"

namespace backplane::sdk {

class FirstFailure {
 public:
  bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }

  // Of each function only the first call has an effect. They return false if the group had failed before.
  bool raise(const Failure& why) noexcept { return set(own_, why); }
  bool raise_by_core(const Failure& why) noexcept { return set(by_core_, why); }

  // Call only if raised.
  Failure cause() const {
    const std::lock_guard lock(mutex_);
    return by_core_ ? *by_core_ : own_.value();
  }
  // Throws the cause if the group has failed.
  void check() const {
    if (raised()) throw cause();
  }

 private:
  bool set(std::optional<Failure>& target, const Failure& why) noexcept {
    const std::lock_guard lock(mutex_);
    if (!target) target.emplace(why);
    return !raised_.exchange(true, std::memory_order_release);
  }

  mutable std::mutex mutex_;
  std::atomic<bool> raised_ = false;
  std::optional<Failure> own_;  // never changed: other threads may read copies that share its text
  std::optional<Failure> by_core_;
};

}  // namespace backplane::sdk
