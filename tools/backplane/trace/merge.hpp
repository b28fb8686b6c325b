// SPDX-License-Identifier: Apache-2.0
//
// Merges the flight recorders of several ranks.
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
  std::string operation;  // "all_reduce sum (f32 x 4)"
  uint64_t seq = 0;
  bool collective = true;
  std::string state;  // "in flight", "done", "failed"; for incoming calls also "queued", "running"
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
  std::string broken;  // cause if the group failed on this rank; else empty
  std::vector<TraceEvent> events;
};

// Reads the JSON of bp_group_trace. Throws Failure naming `origin` if it has another form.
TracedRank read_trace(const nlohmann::ordered_json& json, const std::string& origin);

// All operations by time of their start.
std::vector<TraceEvent> merged(const std::vector<TracedRank>& ranks);

// Findings per group: ranks that are missing or behind, failures, and the first collective in which ranks differ.
std::vector<std::string> remarks(const std::vector<TracedRank>& ranks);

std::string trace_table(const std::vector<TracedRank>& ranks, size_t last);
// For Perfetto and chrome://tracing: a process per rank, a thread per group.
std::string chrome_trace(const std::vector<TracedRank>& ranks);

}  // namespace backplane::tool
