// SPDX-License-Identifier: Apache-2.0
//
// A case: one rule of the ABI, and a body that checks whether a backend keeps it.
#pragma once

#include <vector>

#include "backplane/conformance/conformance.hpp"
#include "rank.hpp"

namespace backplane::conformance {

// The conditions under which a case applies. Otherwise it is skipped, and the report names the unmet condition.
struct Needs {
  bool groups = true;                                // the backend makes process groups
  uint64_t ops = BP_BIT(BP_SEND) | BP_BIT(BP_RECV);  // native operations, all of them
  uint32_t flags = 0;                                // BP_BACKEND_..., all of them
  uint32_t without = 0;                              // BP_BACKEND_ONE_WORLD, BP_BACKEND_BLOCKING_INIT: none of them
  int32_t ranks = 1;                                 // at least
  bool processes = false;                            // each rank is a separate process
  bool file = false;                                 // the plugin comes from a file
};

struct Case {
  const char* group = "";
  const char* name = "";
  const char* about = "";  // the rule, in one line without a full stop
  Level level = Level::kMust;
  Needs needs = {};
  std::vector<int32_t> worlds = {};  // world sizes to run at, one after the other; empty: the user's
  void (*body)(Rank& rank) = nullptr;
  Nanoseconds deadline = 20 * kSecond;  // of one run, scaled
  bool loads = true;                    // false: the body loads the plugin itself (Run::plugin is null)
  int32_t extra_processes = 0;          // processes that run the body without being ranks
  bool own_network = false;             // in a private network namespace, loopback up; skipped if not permitted
};

// Restricts the case to backends without these flags.
inline Case without(uint32_t flags, Case which) {
  which.needs.without |= flags;
  return which;
}

// The groups in the order in which they run. Each has its own file.
std::vector<Case> load_cases();
std::vector<Case> options_cases();
std::vector<Case> init_cases();
std::vector<Case> p2p_cases();
std::vector<Case> collectives_cases();
std::vector<Case> order_cases();
std::vector<Case> async_cases();
std::vector<Case> groups_cases();
std::vector<Case> time_cases();
std::vector<Case> abort_cases();
std::vector<Case> death_cases();
std::vector<Case> hygiene_cases();
std::vector<Case> hostile_cases();
std::vector<Case> errors_cases();
std::vector<Case> process_cases();
std::vector<Case> determinism_cases();
std::vector<Case> memory_cases();
std::vector<Case> device_cases();
std::vector<Case> probe_cases();

const std::vector<Case>& all_cases();

}  // namespace backplane::conformance
