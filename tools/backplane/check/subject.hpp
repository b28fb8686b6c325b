// SPDX-License-Identifier: Apache-2.0
//
// Finds the plugin that `backplane check` is to check, by path or by id.
#pragma once

#include <map>
#include <string>

#include "backplane/conformance/conformance.hpp"

namespace backplane::tool {

struct FoundSubject {
  conformance::Subject subject;
  std::string refusal;    // why the core refuses this plugin; empty if it does not
  bool may_load = false;  // a refused plugin can perhaps be loaded, so the cases about loading can say more
  bool is_composite = false;
};

// `what` is a path if it has a slash or ends in .so, else the id of a registered backend, or a composite of them with
// their options. `backend` chooses one of several in a file; may be empty. Plugin code runs in a child process for at
// most kQueryTimeout times `timeout_scale`. Throws Failure(kWrongUse).
FoundSubject find_subject(const std::string& what, const std::string& backend,
                          const std::map<std::string, std::string>& options, double timeout_scale);

}  // namespace backplane::tool
