// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "case.hpp"

namespace backplane::conformance {

// Whether agents that come and go, or fail to, leave anything behind.
std::vector<Case> hygiene_rounds_cases();
// What happens when descriptors, memory or threads run out.
std::vector<Case> hygiene_scarce_cases();

}  // namespace backplane::conformance
