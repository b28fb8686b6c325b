// SPDX-License-Identifier: Apache-2.0
//
// The flight recorders of several ranks, put together.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace backplane::tool {

// One operation of one rank, or a call between workers. Times are nanoseconds of the wall clock.
struct TraceEvent {
  std::string group;
  int rank = -1;
  std::string words;  // "all_reduce sum (f32 x 4)"
  uint64_t seq = 0;
  bool collective = true;
  std::string state;  // "in flight", "done", "failed"; of a function for others also "queued", "running" ...
  int64_t begin_ns = 0;
  int64_t end_ns = 0;  // 0: in flight
};

// One recorder: a rank in a group.
struct TracedRank {
  std::string group;
  std::string key;
  int rank = -1;
  int world_size = 0;
  std::string identity;
  std::string broken;  // why the group is broken on this rank; empty if it is not
  std::vector<TraceEvent> events;
};

// Reads what bp_group_trace said. Throws Failure, naming `origin`, if it is not that.
TracedRank read_trace(const nlohmann::ordered_json& json, const std::string& origin);

// All operations in the order in which they began.
std::vector<TraceEvent> merged(const std::vector<TracedRank>& ranks);

// One sentence per group for what strikes the eye: ranks that are missing or behind, and the first collective in which
// ranks differ.
std::vector<std::string> remarks(const std::vector<TracedRank>& ranks);

std::string trace_table(const std::vector<TracedRank>& ranks, size_t last);
// For Perfetto and chrome://tracing: a process per rank, a thread per group.
std::string chrome_trace(const std::vector<TracedRank>& ranks);

}  // namespace backplane::tool
