// SPDX-License-Identifier: Apache-2.0
//
// The parts of group collectives.
#pragma once

#include <vector>

#include "../case.hpp"

namespace backplane::conformance {

std::vector<Case> collectives_operation_cases();  // each operation by itself
std::vector<Case> collectives_buffer_cases();     // alignment, overlap and size of buffers
std::vector<Case> collectives_size_cases();       // large buffers and larger worlds
std::vector<Case> collectives_value_cases();      // special values of elements
std::vector<Case> collectives_mismatch_cases();   // ranks that do not agree

}  // namespace backplane::conformance
