// SPDX-License-Identifier: Apache-2.0
//
// Descriptions of backends as JSON for `backplane list`, `backplane info` and other languages.
#pragma once

#include <string>

#include "registry/registry.hpp"

namespace backplane::core {

// {"abi": "1.0", "directories": [{path, origin, state, reason?}], "backends": [{id, version, kinds, flags, ops, file,
// built_minor, need_minor, state, reason?}], "rejected": [{file, reason}]}. Runs no plugin code.
std::string list_json(Registry& registry);

// One backend: id, name, version, summary, vendor, file, abi, kinds, flags, options, capabilities.
std::string info_json(const Member& member);

}  // namespace backplane::core
