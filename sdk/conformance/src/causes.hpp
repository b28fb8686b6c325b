// SPDX-License-Identifier: Apache-2.0
//
// Tells the causes of a failed case from their consequences.
#pragma once

#include <string_view>
#include <vector>

#include "case.hpp"

namespace backplane::conformance {

struct FindingInTime {
  Finding finding;
  Nanoseconds at = 0;    // by now()
  bool is_last = false;  // this rank has left the case
};

// In the order of time, without those that report only the loss of a rank (BP_PEER_LOST) after one has left the case
// because of its own finding.
std::vector<Finding> causes(std::vector<FindingInTime> all);

// Whether the output of a rank contains a report of a sanitizer.
bool has_sanitizer_report(std::string_view output);

}  // namespace backplane::conformance
