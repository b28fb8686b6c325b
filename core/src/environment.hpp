// SPDX-License-Identifier: Apache-2.0
//
// Environment variables and the numbers in them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace backplane::core {

// The value of a variable. Nothing if it is not set or empty.
std::optional<std::string> variable(const char* name);
// "1", "true", "yes" or "on" in any case.
bool variable_is_true(const char* name);

// A decimal integer from `least` to `most`. BP_INVALID names `what` ("RANK"), the text and the range.
int64_t parse_number(const std::string& what, const std::string& text, int64_t least, int64_t most);
uint16_t parse_port(const std::string& what, const std::string& text);

}  // namespace backplane::core
