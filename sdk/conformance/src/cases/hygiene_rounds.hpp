// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "case.hpp"

namespace backplane::conformance {

// Checks that agents that start and end, or fail to start, leak nothing.
std::vector<Case> hygiene_rounds_cases();
// Exhausted descriptors, memory or threads.
std::vector<Case> hygiene_scarce_cases();

}  // namespace backplane::conformance
