// SPDX-License-Identifier: Apache-2.0
//
// A process between the command and those that run plugin code, so that a plugin that kills or stops its parent, or its
// parent's process group, costs the answer and not the command.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace backplane::tool {

// What came of it: `result` is what the body returned, or `trouble` says how the process ended without ("was ended by
// signal 9 (Killed)"); exactly one of them has a meaning.
struct Aside {
  bool complete = false;
  std::string result;
  std::string trouble;
};

using Say = std::function<void(const std::string& line)>;

// Runs `body` in a child process and a session of its own, and hands the lines that it says to `on_line` (may be empty)
// here. Call it while the process has one thread. The child is killed if nothing was heard of it for `silence`, and
// with this process. A child that somebody has stopped is continued.
Aside run_aside(const std::function<std::string(const Say& say)>& body,
                const std::function<void(const std::string& line)>& on_line, std::chrono::nanoseconds silence);

}  // namespace backplane::tool
