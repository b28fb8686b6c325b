// SPDX-License-Identifier: Apache-2.0
//
// The rules of backplane doctor: pure functions from observations to findings.
#pragma once

#include <vector>

#include "doctor/facts.hpp"
#include "doctor/finding.hpp"
#include "doctor/job.hpp"

namespace backplane::tool {

// Faults of one host. `is_alone`: no other host takes part in the job.
Findings host_findings(const Facts& facts, bool is_alone);

// Differences between the ranks of a job.
Findings job_findings(const std::vector<Facts>& ranks);

// Faults of the network between hosts. `hosts`: whole facts, one for each host.
Findings network_findings(const std::vector<Facts>& hosts, const std::vector<Path>& paths);

// All of the above, errors first. Findings that differ in their hosts only are merged.
Findings diagnose(const Observations& seen);

}  // namespace backplane::tool
