// SPDX-License-Identifier: Apache-2.0
//
// A case: one rule of the ABI, and a body that checks whether a backend keeps it.
#pragma once

#include <utility>
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

// How a case runs.
struct Execution {
  Level level = Level::kMust;
  std::vector<int32_t> worlds = {};     // world sizes to run at, one after the other; empty: the user's
  Nanoseconds deadline = 20 * kSecond;  // of one run, scaled
  bool loads = true;                    // false: the body loads the plugin itself (Run::plugin is null)
  int32_t extra_processes = 0;          // processes that run the body without being ranks
  bool own_network = false;             // in a private network namespace, loopback up; skipped if not permitted
};

struct Case : Execution {
  using Body = void (*)(Rank& rank);
  Case() = default;
  // `about`: the rule, in one line without a full stop.
  Case(const char* name_, const char* about_, Body body_, Needs needs_ = {}, Execution execution = {})
      : Execution(std::move(execution)), name(name_), about(about_), needs(needs_), body(body_) {}
  // A copy in this group.
  Case in(const char* group_) const {
    Case copy = *this;
    copy.group = group_;
    return copy;
  }

  const char* group = "";
  const char* name = "";
  const char* about = "";
  Needs needs = {};
  Body body = nullptr;
};

// The cases of all groups, in the order in which they run (cases/all.cpp).
const std::vector<Case>& all_cases();

}  // namespace backplane::conformance
