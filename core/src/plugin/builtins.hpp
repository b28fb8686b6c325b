// SPDX-License-Identifier: Apache-2.0
//
// The plugins that are linked into the core. plugins/CMakeLists.txt generates the list.
#pragma once

#include <vector>

#include "backplane/abi/plugin.h"

namespace backplane::core {

std::vector<const bp_plugin*> builtin_plugins();

}  // namespace backplane::core
