// SPDX-License-Identifier: Apache-2.0
//
// Time stamps for the flight recorder. Uses the processor's counter where its rate is constant (the invariant TSC of
// x86-64), otherwise the system's clock. Reading the clock is most of the cost of recording an operation; the counter
// takes a third of it.
#pragma once

#include <time.h>

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace backplane::core {

inline int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

class TickClock {
 public:
  // Both clocks at one moment.
  struct Reading {
    int64_t ticks = 0;
    int64_t ns = 0;  // CLOCK_MONOTONIC
  };

  TickClock() : counts_(has_steady_counter()), start_(read()) {}

  int64_t now() const {
#if defined(__x86_64__)
    if (counts_) return static_cast<int64_t>(__rdtsc());
#endif
    return backplane::core::monotonic_ns();
  }

  Reading read() const {
    Reading best;
    int64_t smallest = INT64_MAX;
    for (int i = 0; i < 3; ++i) {  // the thread may be preempted in between
      const int64_t before = now();
      const int64_t ns = backplane::core::monotonic_ns();
      const int64_t after = now();
      if (after - before >= smallest) continue;
      smallest = after - before;
      best = {before + smallest / 2, ns};
    }
    return best;
  }

  // Converts a time stamp, by linear interpolation between the start of this clock and `later`.
  int64_t monotonic_ns(int64_t ticks, const Reading& later) const {
    if (!counts_) return ticks;
    const int64_t span = later.ticks - start_.ticks;
    if (span <= 0) return start_.ns;
    const double rate = static_cast<double>(later.ns - start_.ns) / static_cast<double>(span);
    return later.ns + static_cast<int64_t>(static_cast<double>(ticks - later.ticks) * rate);
  }

 private:
  static bool has_steady_counter() {
#if defined(__x86_64__)
    constexpr unsigned kPowerLeaf = 0x80000007;
    constexpr unsigned kInvariantTsc = 1U << 8;
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return __get_cpuid(kPowerLeaf, &a, &b, &c, &d) != 0 && (d & kInvariantTsc) != 0;
#else
    return false;
#endif
  }

  const bool counts_;
  const Reading start_;
};

}  // namespace backplane::core
