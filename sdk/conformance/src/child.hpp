// SPDX-License-Identifier: Apache-2.0
//
// The child's side of a case: one process that is one or all of the ranks, or an extra process.
#pragma once

#include <string>
#include <vector>

#include "case.hpp"

namespace backplane::conformance {

// What a child needs to run. Built before the fork.
struct ChildSetup {
  const Case* which = nullptr;
  Run run;
  std::vector<int32_t> members;  // each runs the body, on a thread of its own if there are several
  bool is_extra = false;
  int output = -1;  // becomes stdout and stderr
};

// Closes what it does not need, loads the plugin, runs the body and ends the process.
[[noreturn]] void run_child(ChildSetup& setup);

// Why the path cannot be loaded: no such file, a directory, a FIFO, a device. Empty for a regular file. Does not open
// it, since opening a FIFO can block.
std::string file_problem(const std::string& path);

// Opens a plugin file (RTLD_NOW | RTLD_LOCAL) and returns its entry; null, and why, if it cannot.
const bp_plugin* load_plugin(const std::string& path, std::string& why);

}  // namespace backplane::conformance
