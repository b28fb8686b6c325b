// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "case.hpp"

namespace backplane::conformance {

// The network fails, not a process.
std::vector<Case> death_network_cases();

}  // namespace backplane::conformance
