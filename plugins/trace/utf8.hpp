// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace backplane::trace {

// What is no UTF-8 becomes U+FFFD, byte by byte: names of functions come from peers, and are cut where they are long.
std::string valid(std::string_view text);

}  // namespace backplane::trace
