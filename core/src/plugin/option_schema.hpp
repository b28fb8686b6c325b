// SPDX-License-Identifier: Apache-2.0
//
// Checks that the core can enforce the option schema of a backend (abi/options.h).
#pragma once

#include <string>

#include "backplane/abi/abi.h"

namespace backplane::core::plugin {

// The first fault of a backend's options: "option 'threads' has the default 'many', which ...". Empty if there is none.
std::string option_schema_problem(const bp_backend& backend);

}  // namespace backplane::core::plugin
