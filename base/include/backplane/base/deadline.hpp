// SPDX-License-Identifier: Apache-2.0
//
// A point on the monotonic clock, or no limit.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "backplane/abi/version.h"

namespace backplane::base {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // The time `timeout_ns` from now. Never for BP_NO_TIMEOUT (any negative number).
  static Deadline after(int64_t timeout_ns) {
    constexpr int64_t kFar = INT64_C(100) * 365 * 24 * 3600 * 1000000000;  // avoids overflow of the clock
    if (timeout_ns < 0) return Deadline(Clock::time_point::max());
    return Deadline(Clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, kFar)));
  }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool infinite() const { return at_ == Clock::time_point::max(); }
  bool passed() const { return !infinite() && Clock::now() >= at_; }
  Clock::time_point at() const { return at_; }
  bool operator<(const Deadline& other) const { return at_ < other.at_; }

  Deadline later(int64_t ns) const { return infinite() ? *this : Deadline(at_ + std::chrono::nanoseconds(ns)); }

  // The remaining time, at least 0; BP_NO_TIMEOUT if there is no limit.
  int64_t left_ns() const {
    if (infinite()) return BP_NO_TIMEOUT;
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(at_ - Clock::now()).count();
    return std::max<int64_t>(left, 0);
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace backplane::base
