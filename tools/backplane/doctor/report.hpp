// SPDX-License-Identifier: Apache-2.0
//
// The output of backplane doctor.
#pragma once

#include <string>

#include "doctor/finding.hpp"
#include "doctor/job.hpp"

namespace backplane::tool {

// One line per finding, the measured paths, and the number of findings.
std::string text_report(const Observations& seen, const Findings& findings);

// {"findings": [...], "ranks": [...], "silent": [...], "unfinished": [...], "paths": [...]}
std::string json_report(const Observations& seen, const Findings& findings);

}  // namespace backplane::tool
