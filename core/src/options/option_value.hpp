// SPDX-License-Identifier: Apache-2.0
//
// The text of one option's value, read by the rules of backplane/abi/options.h.
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
  std::string problem;  // "is not between 1 and 64": the end of a sentence; empty if the value is right
};

// Reads a value. Never throws.
OptionValue read_option(const bp_option& option, std::string_view text);

// Checks all that a user gave against a backend's schema and completes it: one value per option, in the schema's order.
// Throws core::Error (BP_INVALID) for an unknown key (naming the nearest valid one), one that comes twice, a missing
// required one or a wrong value.
KeyValues complete_options(const bp_backend& backend, const KeyValues& given);

}  // namespace backplane::core
