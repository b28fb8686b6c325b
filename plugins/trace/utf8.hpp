// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace backplane::trace {

// Replaces each byte that is not part of valid UTF-8 by U+FFFD. Function names come from peers and may be truncated
// inside a character.
std::string valid(std::string_view text);

}  // namespace backplane::trace
