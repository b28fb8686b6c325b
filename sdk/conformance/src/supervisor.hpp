// SPDX-License-Identifier: Apache-2.0
//
// Runs one case once: forks its ranks, reads their records, enforces the deadline, and kills what remains.
// Single-threaded.
#pragma once

#include <functional>

#include "facts.hpp"

namespace backplane::conformance {

// The results of one run.
struct Outcomes {
  std::vector<Finding> findings;
  std::vector<std::string> skips;
  std::vector<std::string> harness_errors;
  std::vector<Cell> cells;
  Facts facts;
  std::string output;  // of all ranks, at most 4 KiB
};

struct RunSettings {
  int32_t ranks = 1;
  bool one_process = false;  // all ranks as threads of one child
  uint64_t seed = 0;
  double timeout_scale = 1;
  bool on_device = false;                           // see Settings
  std::function<void(int32_t rank)> in_child = {};  // see Settings
  std::string pmix_server = {};                     // empty: none is started
};

Outcomes run_case(const Case& which, const Subject& subject, const RunSettings& settings);

}  // namespace backplane::conformance
