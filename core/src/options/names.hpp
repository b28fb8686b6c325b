// SPDX-License-Identifier: Apache-2.0
//
// Checks of names and texts that come from plugins and users.
#pragma once

#include <string>
#include <string_view>

namespace backplane::core {

// [a-z0-9_-]{1,32}. `backplane_<id>.so` therefore never names a file of another directory.
bool valid_id(std::string_view id);

// Valid UTF-8 (shortest form, no surrogates) without control characters.
bool printable(std::string_view text);

// The text for a message: bytes that are not printable become \xNN.
std::string escaped(std::string_view text);

}  // namespace backplane::core
