// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "case.hpp"

namespace backplane::conformance {

// Not the process but the network fails.
std::vector<Case> death_network_cases();

}  // namespace backplane::conformance
