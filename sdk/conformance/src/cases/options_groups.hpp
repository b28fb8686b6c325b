// SPDX-License-Identifier: Apache-2.0
//
// The parts of the group `options`.
#pragma once

#include <vector>

#include "../case.hpp"

namespace backplane::conformance::options {

std::vector<Case> schema_cases();  // what the backend declares
std::vector<Case> values_cases();  // the effect of values

}  // namespace backplane::conformance::options
