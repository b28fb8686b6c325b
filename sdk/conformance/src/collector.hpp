// SPDX-License-Identifier: Apache-2.0
//
// Collects what the children of one run report and print.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "causes.hpp"
#include "channel.hpp"
#include "supervisor.hpp"

namespace backplane::conformance {

class Collector {
 public:
  // `at`: now() in the child. `is_last`: the member leaves the case by it.
  void add_finding(int32_t member, const std::string& expected, const std::string& actual, const std::string& step,
                   Nanoseconds at = now(), bool is_last = false);
  void add_skip(const std::string& reason) { outcomes_.skips.push_back(reason); }
  void add_harness_error(const std::string& text) { outcomes_.harness_errors.push_back(text); }
  // A record that reports something. Others have no effect.
  void take(const Record& record);
  // Keeps the first 4 KiB. A report of a sanitizer is a finding.
  void keep_output(std::string_view text);

  // The results, with the findings that are causes. Call once, at the end.
  Outcomes finish();

 private:
  Outcomes outcomes_;
  std::vector<FindingInTime> findings_;
  bool reported_by_sanitizer_ = false;
};

}  // namespace backplane::conformance
