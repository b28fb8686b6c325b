// SPDX-License-Identifier: Apache-2.0
//
// Does the bp_plugin of a loaded file keep what abi/plugin.h asks, and what its note promised?
#pragma once

#include <string>
#include <string_view>

#include "backplane/abi/abi.h"
#include "plugin/note.hpp"

namespace backplane::core::plugin {

// The first thing that is wrong with a backend's descriptor, whoever hands it over, in a sentence that calls it `name`:
// "backend 'acme' has no init function". Empty if it is sound. `newer`: operations unknown here are no mistake. Calls
// none of its functions.
std::string descriptor_problem(const bp_backend& backend, std::string_view name, bool newer);

// Throws core::Error (BP_INTERNAL: the plugin's fault; BP_UNSUPPORTED: it needs a newer core) with the first breach. A
// newer plugin may have larger structs and operations unknown here. Calls no function of the plugin.
void check_contract(const bp_plugin& plugin, const Note& note);

}  // namespace backplane::core::plugin
