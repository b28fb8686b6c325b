// SPDX-License-Identifier: Apache-2.0
//
// Checks that the bp_plugin of a loaded file keeps the rules of abi/plugin.h and agrees with its note.
#pragma once

#include <string>
#include <string_view>

#include "backplane/abi/abi.h"
#include "plugin/note.hpp"

namespace backplane::core::plugin {

// The first fault of a backend's descriptor: "backend 'acme' has no init function", where acme is `name`. Empty if
// there is none. `newer`: unknown operations are allowed. Calls none of its functions.
std::string descriptor_problem(const bp_backend& backend, std::string_view name, bool newer);

// Throws core::Error with the first fault. BP_INTERNAL: the plugin is broken; BP_UNSUPPORTED: it needs a newer core. A
// newer plugin may have larger structs and unknown operations. Calls no function of the plugin.
void check_contract(const bp_plugin& plugin, const Note& note);

}  // namespace backplane::core::plugin
