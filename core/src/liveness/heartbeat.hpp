// SPDX-License-Identifier: Apache-2.0
//
// Heartbeats: how the ranks of a job show that they are alive.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

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

// "no heartbeat for 10 s; ...": the reason for which a silent client or server is lost.
std::string silence_text(const Heartbeat& heartbeat);

}  // namespace backplane::core
