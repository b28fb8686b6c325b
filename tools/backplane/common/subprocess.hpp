// SPDX-License-Identifier: Apache-2.0
//
// Isolates the command from processes that run plugin code: a plugin that kills or stops its parent, or its parent's
// process group, ends only the subprocess.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace backplane::tool {

// `result` is the return value of the body if `complete`. Otherwise `error` says how the process ended ("was ended by
// signal 9 (Killed)").
struct SubprocessResult {
  bool complete = false;
  std::string result;
  std::string error;
};

using WriteLine = std::function<void(const std::string& line)>;

// Runs `body` in a child process with its own session and passes the lines that it writes to `on_line` (may be empty).
// Call it while the process has one thread. The child is killed if it writes nothing for `silence`, once `stopped` (may
// be empty; asked at least every 100 ms) returns true, and when this process ends. A stopped child is continued.
SubprocessResult run_subprocess(const std::function<std::string(const WriteLine& write_line)>& body,
                                const std::function<void(const std::string& line)>& on_line,
                                std::chrono::nanoseconds silence, const std::function<bool()>& stopped = {});

}  // namespace backplane::tool
