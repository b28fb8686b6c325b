// SPDX-License-Identifier: Apache-2.0
//
// The child's side of a case: one process that is one or all of the ranks, or an extra process.
#pragma once

#include <string>
#include <vector>

#include "case.hpp"

namespace backplane::conformance {

// The arguments of run_child.
struct ChildSetup {
  const Case* which = nullptr;
  Run run;
  std::vector<int32_t> members;  // each runs the body; several run on one thread each
  bool is_extra = false;
  int output = -1;  // becomes stdout and stderr
};

// Closes what it does not need, loads the plugin, runs the body and ends the process.
[[noreturn]] void run_child(ChildSetup& setup);

// Why the path cannot be loaded: no such file, a directory, a FIFO, a device. Empty for a regular file. Does not open
// it, since opening a FIFO can block.
std::string file_problem(const std::string& path);

// Opens a plugin file (RTLD_NOW | RTLD_LOCAL) and returns its entry. On failure returns null and sets `why`.
const bp_plugin* load_plugin(const std::string& path, std::string& why);

}  // namespace backplane::conformance
