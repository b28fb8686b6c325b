// SPDX-License-Identifier: Apache-2.0
//
// Selection of conformance cases by --filter.
#pragma once

#include <string>
#include <vector>

#include "backplane/conformance/conformance.hpp"

namespace backplane::tool {

// Names of the cases that match a filter: a group ("p2p"), a case ("p2p.tag-match") or a pattern with * and ?. Without
// filters, all. Cases of higher levels need that level, or a filter that names them exactly. Throws Failure(kWrongUse)
// for a filter without a match, with the nearest name.
std::vector<std::string> chosen_cases(const std::vector<std::string>& filters, conformance::Level level);

// "must", "full", "thorough"
const char* level_word(conformance::Level level);
conformance::Level level_of(const std::string& word);

// The case with the most similar name; `name` itself if that is one.
std::string nearest_case(const std::string& name);

// The cases as a table: name, level, rule.
std::string case_table();

}  // namespace backplane::tool
