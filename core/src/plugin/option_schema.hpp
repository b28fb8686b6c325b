// SPDX-License-Identifier: Apache-2.0
//
// Is the option schema of a backend (abi/options.h) one that the core can enforce?
#pragma once

#include <string>

#include "backplane/abi/abi.h"

namespace backplane::core::plugin {

// The first thing that is wrong with the options of a backend: "option 'threads' has the default 'many', which ...".
// Empty if all is well.
std::string option_schema_problem(const bp_backend& backend);

}  // namespace backplane::core::plugin
