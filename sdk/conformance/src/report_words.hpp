// SPDX-License-Identifier: Apache-2.0
//
// Shared by the report formats: words for values, and text of unknown origin (a plugin's) made harmless.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "backplane/conformance/conformance.hpp"

namespace backplane::conformance {

const char* level_name(Level level);        // "must", "full"
const char* verdict_name(Verdict verdict);  // "passed", "failed", "skipped"

// "p2p.tag-match"
std::string full_name(const Result& result);

// Reduces something: then Cell::reduce_op has a meaning.
bool is_reduction(uint32_t op);

// How many results have each verdict, by its value.
std::array<size_t, 3> count_verdicts(const Report& report);

// The text as valid UTF-8: a byte that is none becomes U+FFFD, and so does a control character other than tab and
// newline, which could move a terminal's cursor and is not allowed in XML.
std::string harmless(std::string_view text);

// The same on one line: newlines and tabs become spaces.
std::string one_line(std::string_view text);

// "12.3"
std::string decimal(double value, int digits);

}  // namespace backplane::conformance
