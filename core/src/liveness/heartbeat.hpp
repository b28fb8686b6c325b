// SPDX-License-Identifier: Apache-2.0
//
// Heartbeats: their interval, the limit of silence, and the detection of suspensions.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace backplane::core {

// The interval of heartbeats, and the silence after which a process counts as lost.
struct Heartbeat {
  int64_t interval_ns = 1'000'000'000;
  int64_t limit_ns = 10'000'000'000;

  // The interval at which heartbeats are sent and silence is measured.
  int64_t tick_ns() const { return std::min(interval_ns, limit_ns / 4); }
};
inline constexpr int64_t kMinHeartbeatNs = 10'000'000;
inline constexpr int64_t kMaxHeartbeatNs = INT64_C(3600) * 1'000'000'000;  // of the interval and of the limit
// Both from 10 ms to 1 h, and the limit at least twice the interval: one late heartbeat must not count as a death.
inline bool is_valid(const Heartbeat& heartbeat) {
  return heartbeat.interval_ns >= kMinHeartbeatNs && heartbeat.limit_ns <= kMaxHeartbeatNs &&
         heartbeat.limit_ns / 2 >= heartbeat.interval_ns;
}

// BACKPLANE_HEARTBEAT_INTERVAL and BACKPLANE_HEARTBEAT_LIMIT ("500ms", "10s", "2m"; a number alone is seconds), or the
// defaults. BP_INVALID names the variable, its value and the allowed range.
Heartbeat environment_heartbeat();

// Detects by late ticks that this process was suspended. Peers may then seem silent although they are not.
class SuspensionDetector {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void restart(Time now) { last_ = now; }
  // Records a tick. True if it was late by more than an interval.
  bool was_suspended(Time now, const Heartbeat& heartbeat) {
    const auto since = now - std::exchange(last_, now);
    return since > std::chrono::nanoseconds(heartbeat.tick_ns() + heartbeat.interval_ns);
  }

 private:
  Time last_ = std::chrono::steady_clock::now();
};

// "no heartbeat for 10 s; ...": the reason for which a silent client or server is lost.
std::string silence_text(const Heartbeat& heartbeat);

}  // namespace backplane::core
