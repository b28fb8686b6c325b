// SPDX-License-Identifier: Apache-2.0
#include "causes.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace backplane::conformance {

std::vector<Finding> causes(std::vector<FindingInTime> all) {
  std::stable_sort(all.begin(), all.end(),
                   [](const FindingInTime& left, const FindingInTime& right) { return left.at < right.at; });
  std::vector<Finding> result;
  bool one_has_left = false;
  for (FindingInTime& each : all) {
    const bool follows = one_has_left && each.finding.actual.starts_with(status_name(BP_PEER_LOST));
    one_has_left = one_has_left || each.is_last;
    if (!follows) result.push_back(std::move(each.finding));
  }
  return result;
}

bool has_sanitizer_report(std::string_view output) {
  constexpr std::array<std::string_view, 4> kSigns = {"WARNING: ThreadSanitizer", "ERROR: AddressSanitizer",
                                                      "ERROR: LeakSanitizer", "runtime error:"};
  return std::any_of(kSigns.begin(), kSigns.end(),
                     [output](std::string_view sign) { return output.find(sign) != std::string_view::npos; });
}

}  // namespace backplane::conformance
