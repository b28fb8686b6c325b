// SPDX-License-Identifier: Apache-2.0
//
// The parts of the group `process`.
#pragma once

#include "case.hpp"

namespace backplane::conformance {

inline Case process_case(const char* name, const char* about, void (*body)(Rank&)) {
  Case result;
  result.group = "process";
  result.name = name;
  result.about = about;
  result.body = body;
  return result;
}

// Signals and other state that belongs to the process, not to the backend.
std::vector<Case> process_signal_cases();
// Forked children.
std::vector<Case> process_fork_cases();

}  // namespace backplane::conformance
