// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "case.hpp"

namespace backplane::conformance {

// Signals and other state that belongs to the process, not to the backend.
std::vector<Case> process_signal_cases();

}  // namespace backplane::conformance
