// SPDX-License-Identifier: Apache-2.0
//
// The parts of group collectives.
#pragma once

#include <vector>

#include "../case.hpp"

namespace backplane::conformance {

std::vector<Case> collectives_operation_cases();  // each operation by itself
std::vector<Case> collectives_buffer_cases();     // where the data lies
std::vector<Case> collectives_value_cases();      // what is special about some elements
std::vector<Case> collectives_mismatch_cases();   // ranks that do not agree

}  // namespace backplane::conformance
