// SPDX-License-Identifier: Apache-2.0
//
// Shared by the report formats: names of values, and sanitized text of plugins.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "backplane/conformance/conformance.hpp"

namespace backplane::conformance {

const char* level_name(Level level);        // "must", "full", "thorough"
const char* verdict_name(Verdict verdict);  // "passed", "failed", "skipped"

// "p2p.tag-match"
std::string full_name(const Result& result);

// Whether the operation reduces, so that Cell::reduce_op is meaningful.
bool is_reduction(uint32_t op);

// How many results have each verdict, by its value, and how many failed as expected, which are not among the failed.
std::array<size_t, 4> count_verdicts(const Report& report);

// Makes text valid UTF-8. Replaces invalid bytes by U+FFFD. Replaces control characters except tab and newline as well,
// because they could move a terminal's cursor and XML forbids them.
std::string harmless(std::string_view text);

// The same on one line: newlines and tabs become spaces.
std::string one_line(std::string_view text);

// The same for an attribute or the text of an element.
std::string xml_escaped(std::string_view text);

// "12.3"
std::string decimal(double value, int digits);

}  // namespace backplane::conformance
