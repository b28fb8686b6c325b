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
// Whether this process runs with more rights than its caller: a set-uid program, or one with capabilities (AT_SECURE).
bool runs_secure();
// The same as variable, but nothing if the process runs secure: for variables that name code or files.
std::optional<std::string> trusted_variable(const char* name, bool secure = runs_secure());
// The rule for wrong values: BP_INVALID with the variable, the value and the allowed values. A variable whose wrong
// values used to be ignored logs that instead, once for each value, and uses its default.
void warn_of_value(const char* name, const std::string& value, const char* allowed, const char* used);
// "1", "true", "yes" or "on" in any case. Warns of values that mean neither that nor the opposite.
bool variable_is_true(const char* name);

// A decimal integer from `least` to `most`. BP_INVALID names `what` ("RANK"), the text and the range.
int64_t parse_number(const std::string& what, const std::string& text, int64_t least, int64_t most);
uint16_t parse_port(const std::string& what, const std::string& text);

}  // namespace backplane::core
