// SPDX-License-Identifier: Apache-2.0
//
// The choice of backends by all ranks of a group whose configuration contains `auto`.
#pragma once

#include <memory>

#include "group/config.hpp"

namespace backplane::core {

// Replaces `auto` in config->backends by backends that all members can use, and adds backends for device memory and for
// ranges of sizes at which another backend is faster. All members call it, over the same keys. Returns whether anything
// was chosen. Throws core::Error: BP_UNSUPPORTED if no backend is usable on all ranks.
bool choose_auto(GroupConfig* config, const std::shared_ptr<Store>& store, Deadline deadline);

}  // namespace backplane::core
