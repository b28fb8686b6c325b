// SPDX-License-Identifier: Apache-2.0
//
// Does the bp_plugin of a loaded file keep what abi/plugin.h asks, and what its note promised?
#pragma once

#include "backplane/abi/abi.h"
#include "plugin/note.hpp"

namespace backplane::core::plugin {

// Throws core::Error (BP_INTERNAL: the plugin's fault; BP_UNSUPPORTED: it needs a newer core) with the first breach. A
// newer plugin may have larger structs and operations unknown here. Calls no function of the plugin.
void check_contract(const bp_plugin& plugin, const Note& note);

}  // namespace backplane::core::plugin
