// SPDX-License-Identifier: Apache-2.0
//
// How long a waiting thread polls before it sleeps, yielding its processor between two polls. Waking a thread on an
// idle processor often takes longer than the reply that it waits for, so polling pays off there. Beside threads that
// compute it does not: a thread that yields gets its processor back after their time slice, milliseconds later, while a
// sleeping thread is woken at once. The policy measures its yields and stops yielding for a while after a long one.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace backplane::base {

// Thread-safe.
class SpinPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  // `limit`: how long one wait polls; 0: not at all.
  explicit SpinPolicy(std::chrono::nanoseconds limit) : limit_(limit) {}

  std::chrono::nanoseconds limit() const { return limit_; }
  // Whether yielding is currently worthwhile.
  bool is_worthwhile(Clock::time_point now) const {
    return now.time_since_epoch().count() >= resume_.load(std::memory_order_relaxed);
  }
  // Yields the processor once. Returns the time afterwards.
  Clock::time_point yield(Clock::time_point now) {
    sched_yield();
    const Clock::time_point then = Clock::now();
    if (then - now > kSlice) {
      // A suspended process (SIGSTOP) would look like one long slice.
      const Clock::duration lost = std::min<Clock::duration>(then - now, kLongest);
      resume_.store((then + kPauses * lost).time_since_epoch().count(), std::memory_order_relaxed);
    }
    return then;
  }

  // Polls ready() and returns true once it does. Returns false when the thread should sleep, or at `until`.
  template <typename Ready>
  bool poll(Clock::time_point until, const Ready& ready) {
    Clock::time_point now = Clock::now();
    until = std::min(until, now + limit_);
    while (now < until && is_worthwhile(now)) {
      if (ready()) return true;
      now = yield(Clock::now());
    }
    return false;
  }

 private:
  // Longer than a thread that moves bytes runs at a time, shorter than one that computes.
  static constexpr std::chrono::microseconds kSlice{300};
  // Upper bound of a measured yield: a few time slices.
  static constexpr std::chrono::milliseconds kLongest{20};
  // The pause after a long yield, in multiples of it: keeps the loss below 2%.
  static constexpr int kPauses = 64;

  const std::chrono::nanoseconds limit_;
  std::atomic<Clock::rep> resume_{Clock::time_point::min().time_since_epoch().count()};
};

}  // namespace backplane::base
