// SPDX-License-Identifier: Apache-2.0
//
// Heartbeats: how the ranks of a job show that they are alive.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace backplane::core {

// How often those who watch over each other give a sign of life, and after how long a silence one counts as lost.
struct Heartbeat {
  int64_t interval_ns = 1'000'000'000;
  int64_t limit_ns = 10'000'000'000;

  // How often the silence of others is looked at: often enough for small limits, too.
  int64_t tick_ns() const { return std::min(interval_ns, limit_ns / 4); }
};
inline constexpr int64_t kShortestBeatNs = 10'000'000;
inline constexpr int64_t kLongestBeatNs = INT64_C(3600) * 1'000'000'000;  // of the interval and of the limit
// From 10 ms to 1 h, and the limit at least twice the interval, or one late sign of life would be taken for a death.
inline bool sound(const Heartbeat& heartbeat) {
  return heartbeat.interval_ns >= kShortestBeatNs && heartbeat.limit_ns <= kLongestBeatNs &&
         heartbeat.limit_ns / 2 >= heartbeat.interval_ns;
}

// BACKPLANE_HEARTBEAT_INTERVAL and BACKPLANE_HEARTBEAT_LIMIT ("500ms", "10s", "2m"; a number alone is seconds), each
// with its default if it is not set. BP_INVALID names the variable, its text and what is allowed.
Heartbeat environment_heartbeat();

// "nothing was heard from it for 10 s (...)": the reason of a silent client or server.
std::string silence_text(const Heartbeat& heartbeat);

}  // namespace backplane::core
