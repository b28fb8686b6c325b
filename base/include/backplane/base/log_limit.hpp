// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace backplane::base {

// Limits log lines of one kind to one per period, and counts those that are left out. Any thread.
class LogLimit {
 public:
  constexpr explicit LogLimit(std::chrono::nanoseconds period = std::chrono::seconds(1)) : period_(period.count()) {}
  LogLimit(const LogLimit&) = delete;
  LogLimit& operator=(const LogLimit&) = delete;

  // Called for each line. nullopt: the line must be left out. Otherwise the text to append to it: "", or the number of
  // lines that were left out before it.
  std::optional<std::string> admit() {
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    int64_t next = next_.load(std::memory_order_relaxed);
    if (now < next || !next_.compare_exchange_strong(next, now + period_)) {
      omitted_.fetch_add(1, std::memory_order_relaxed);
      return std::nullopt;
    }
    const uint64_t omitted = omitted_.exchange(0);
    return omitted == 0 ? "" : " (" + std::to_string(omitted) + " lines of this kind were left out before)";
  }

 private:
  const int64_t period_;           // ns
  std::atomic<int64_t> next_ = 0;  // ns of the steady clock, from which the next line may be logged
  std::atomic<uint64_t> omitted_ = 0;
};

}  // namespace backplane::base
