// SPDX-License-Identifier: Apache-2.0
//
// The flight recorder of a group as JSON, and as files in BACKPLANE_TRACE_DIR.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "group/recorder.hpp"
#include "group/state.hpp"

namespace backplane::core {

class GroupTrace {
 public:
  GroupTrace(const GroupConfig& config, const GroupState& state, const Recorder& recorder)
      : config_(config), state_(state), recorder_(recorder) {}
  GroupTrace(const GroupTrace&) = delete;
  GroupTrace& operator=(const GroupTrace&) = delete;

  // Warns if BACKPLANE_TRACE_DIR is set to a directory in which this process cannot write.
  static void check_directory();
  // A JSON object. Any thread.
  std::string json() const;
  // Adds the calls of an RPC worker: `calls` returns a JSON object whose members are added to the trace. Any thread.
  void set_calls(std::function<std::string()> calls);
  // Writes the trace to BACKPLANE_TRACE_DIR if it is set. `why` is for the log.
  void write_file(const std::string& why) const;
  // Writes the trace if the file "request" in that directory was modified since the last call. Reporter's thread.
  void write_if_requested();

 private:
  const GroupConfig& config_;
  const GroupState& state_;
  const Recorder& recorder_;
  int64_t request_time_ns_ = 0;  // of the last request; reporter's thread
  mutable std::mutex mutex_;     // guards calls_
  std::function<std::string()> calls_;
};

}  // namespace backplane::core
