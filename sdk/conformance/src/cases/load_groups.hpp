// SPDX-License-Identifier: Apache-2.0
//
// The parts of the group `load`.
#pragma once

#include <vector>

#include "../case.hpp"

namespace backplane::conformance::load {

std::vector<Case> file_cases();      // the file's structure
std::vector<Case> contract_cases();  // the descriptor and its note
std::vector<Case> manners_cases();   // side effects of loading and starting on the process
std::vector<Case> structs_cases();   // cores of other minor versions

}  // namespace backplane::conformance::load
