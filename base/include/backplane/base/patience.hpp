// SPDX-License-Identifier: Apache-2.0
//
// Whether a thread that waits should look again and again before it sleeps, and let others have its processor between
// two looks. To be woken takes longer than most answers do if the processor rests meanwhile. Where somebody computes it
// is the other way round: whoever yields gets the processor back after the other one's time slice, milliseconds later;
// whoever sleeps, as soon as there is something. So it is measured: a yield that took long is the last for a while.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace backplane::base {

// Any thread, all functions.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  // `limit`: how long one wait looks; 0: never.
  explicit Patience(std::chrono::nanoseconds limit) : limit_(limit) {}

  std::chrono::nanoseconds limit() const { return limit_; }
  // Whether it is worth while to yield.
  bool pays(Clock::time_point now) const {
    return now.time_since_epoch().count() >= resume_.load(std::memory_order_relaxed);
  }
  // Lets others have the processor; returns when it has it again.
  Clock::time_point yield(Clock::time_point now) {
    sched_yield();
    const Clock::time_point then = Clock::now();
    if (then - now > kSlice) {
      // A process that was stopped meanwhile says nothing of those who compute.
      const Clock::duration lost = std::min<Clock::duration>(then - now, kLongest);
      resume_.store((then + kPauses * lost).time_since_epoch().count(), std::memory_order_relaxed);
    }
    return then;
  }

  // Calls ready() until it returns true, then returns true; false when it is time to sleep, or `until` has come.
  template <typename Ready>
  bool look(Clock::time_point until, const Ready& ready) {
    Clock::time_point now = Clock::now();
    until = std::min(until, now + limit_);
    while (now < until && pays(now)) {
      if (ready()) return true;
      now = yield(Clock::now());
    }
    return false;
  }

 private:
  // Longer than threads that move bytes have the processor at a time, shorter than those that compute.
  static constexpr std::chrono::microseconds kSlice{300};
  // Of the longest that is believed: some time slices.
  static constexpr std::chrono::milliseconds kLongest{20};
  // Times the time lost, so that it stays below 2%.
  static constexpr int kPauses = 64;

  const std::chrono::nanoseconds limit_;
  std::atomic<Clock::rep> resume_{Clock::time_point::min().time_since_epoch().count()};
};

}  // namespace backplane::base
