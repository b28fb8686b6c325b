// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "case.hpp"

namespace backplane::conformance {

std::vector<Case> death_report_cases();  // what the survivors report to their hosts

}  // namespace backplane::conformance
