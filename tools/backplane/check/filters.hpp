// SPDX-License-Identifier: Apache-2.0
//
// Which cases of the conformance suite the user means.
#pragma once

#include <string>
#include <vector>

#include "backplane/conformance/conformance.hpp"

namespace backplane::tool {

// The names of the cases that the filters stand for: a group ("p2p"), a case ("p2p.tag-match") or a pattern with * and
// ?; none: all. A case of the full level is among them if that is the level, or if a filter names it exactly. Throws
// Failure(kWrongUse) for a filter that nothing satisfies, naming the nearest.
std::vector<std::string> chosen_cases(const std::vector<std::string>& filters, conformance::Level level);

// The cases as a table: name, level, rule.
std::string case_table();

}  // namespace backplane::tool
