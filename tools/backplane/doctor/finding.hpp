// SPDX-License-Identifier: Apache-2.0
//
// What backplane doctor reports.
#pragma once

#include <string>
#include <vector>

namespace backplane::tool {

enum class Severity {
  kNote,     // jobs run
  kWarning,  // some jobs fail or are slow
  kError     // jobs fail
};

struct Finding {
  Severity severity;
  std::string check;               // the same in every version, for scripts: "shm", "reachability"
  std::vector<std::string> hosts;  // names
  std::string text;                // the fault; what to do
};

using Findings = std::vector<Finding>;

}  // namespace backplane::tool
