// SPDX-License-Identifier: Apache-2.0
//
// What outlives a single operation: when it has to end, and why the group no longer works.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>

#include "backplane/sdk/sdk.hpp"

namespace backplane::gloo {

using Clock = std::chrono::steady_clock;

// The moment at which an operation fails with BP_TIMEOUT; Clock::time_point::max() stands for never.
inline Clock::time_point deadline_after(int64_t timeout_ns) {
  if (timeout_ns < 0) return Clock::time_point::max();
  const Clock::time_point now = Clock::now();
  const auto room = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::time_point::max() - now);
  return timeout_ns >= room.count() ? Clock::time_point::max() : now + std::chrono::nanoseconds(timeout_ns);
}
inline int64_t remaining_ns(Clock::time_point deadline) {
  if (deadline == Clock::time_point::max()) return BP_NO_TIMEOUT;
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
  return left > 0 ? left : 0;
}

// How often a blocked call looks at what cannot wake it: the fault, the host's abort flag.
inline constexpr std::chrono::milliseconds kWatchInterval{50};

// Why a group has ended: what this rank met first, until an abort says otherwise. Any thread.
class Fault {
 public:
  bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }

  // Only the first cause stays.
  void raise(const sdk::Failure& why) noexcept {
    const std::lock_guard lock(mutex_);
    if (cause_) return;
    cause_.emplace(why);
    raised_.store(true, std::memory_order_release);
  }

  // What the host says counts more: a rank whose connection ended first may only have followed another one.
  void overrule(const sdk::Failure& why) noexcept {
    const std::lock_guard lock(mutex_);
    if (verdict_) return;
    verdict_.emplace(why);
    raised_.store(true, std::memory_order_release);
  }

  // Throws the cause, if there is one.
  void check() const {
    if (!raised()) return;
    const std::lock_guard lock(mutex_);
    throw sdk::Failure(verdict_ ? *verdict_ : *cause_);
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> raised_ = false;
  std::optional<sdk::Failure> cause_;    // stays: others may still read copies, which share its text
  std::optional<sdk::Failure> verdict_;  // the host's
};

// What every wait of a group looks at.
struct Watch {
  explicit Watch(const sdk::Host& host_table) : host(host_table) {}

  void check() const {
    fault.check();
    if (host.abort_requested()) throw sdk::Failure(BP_CANCELLED, "the group is being aborted");
  }

  const sdk::Host host;
  Fault fault;
};

}  // namespace backplane::gloo
