// SPDX-License-Identifier: Apache-2.0
//
// Reads and checks option values by the rules of backplane/abi/options.h.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/abi/plugin.h"

namespace backplane::core {

using KeyValues = std::vector<std::pair<std::string, std::string>>;

struct OptionValue {
  std::string text;     // normalised: durations in nanoseconds, bytes without a suffix, bool as true or false
  std::string problem;  // "is not between 1 and 64": the end of a sentence; empty if the value is valid
};

// Reads a value. Never throws.
OptionValue read_option(const bp_option& option, std::string_view text);

// Checks the given options against a backend's schema and adds defaults: one value per option, in the schema's order.
// BP_INVALID for an unknown key (names the nearest valid one), a repeated one, a missing required one or a wrong value.
KeyValues complete_options(const bp_backend& backend, const KeyValues& given);

}  // namespace backplane::core
