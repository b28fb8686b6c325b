// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "case.hpp"

namespace backplane::conformance {

std::vector<Case> death_report_cases();  // what is reported to the host of a rank that is killed

}  // namespace backplane::conformance
