// SPDX-License-Identifier: Apache-2.0
//
// What `backplane check` is to check, found by a path or by a backend's name, and what the core says about it.
#pragma once

#include <map>
#include <string>

#include "backplane/conformance/conformance.hpp"

namespace backplane::tool {

struct FoundSubject {
  conformance::Subject subject;
  std::string refusal;  // why the core would not take this plugin; empty if it would
};

// `what` with a slash, or ending in .so, is a path; else a backend that the registry knows. `backend` chooses among
// several in one file; may be empty. Plugin code runs in a child process, which has kAnswerTime times `patience` for
// it. Throws Failure(kWrongUse).
FoundSubject find_subject(const std::string& what, const std::string& backend,
                          const std::map<std::string, std::string>& options, double patience);

}  // namespace backplane::tool
