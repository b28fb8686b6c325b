// SPDX-License-Identifier: Apache-2.0
//
// The choice that all ranks of a group make where its configuration says `auto`.
#pragma once

#include <memory>

#include "group/config.hpp"

namespace backplane::core {

// Replaces `auto` in config->backends by backends that all members can use, and adds those for devices' memory and for
// ranges of sizes at which another backend is faster. Called by all members, over the same keys. Returns whether
// anything was chosen. Throws core::Error: BP_UNSUPPORTED if no backend suits all.
bool choose_auto(GroupConfig* config, const std::shared_ptr<Store>& store, Deadline deadline);

}  // namespace backplane::core
