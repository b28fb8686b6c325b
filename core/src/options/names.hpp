// SPDX-License-Identifier: Apache-2.0
//
// What counts as a name and as text in a plugin, which is written by strangers.
#pragma once

#include <string>
#include <string_view>

namespace backplane::core {

// [a-z0-9_-]{1,32}: also what makes `backplane_<id>.so` a file name without a way out of its directory.
bool valid_id(std::string_view id);

// Valid UTF-8 (shortest form, no surrogates) without control characters.
bool printable(std::string_view text);

// The text for a message, whatever a user typed: bytes that are not printable become \xNN.
std::string legible(std::string_view text);

}  // namespace backplane::core
