// SPDX-License-Identifier: Apache-2.0
//
// A rank of another job connects to the ranks of this one.
#pragma once

#include "rank.hpp"

namespace backplane::conformance {

// The members of such a case: ranks 0 and 1 are this job, rank 2 is the caller of the other job, 3 and 4 are its former
// peers; and one extra process, the relay.
constexpr int32_t kMeetingRanks = 5;

// The whole of such a case, on all members alike. The caller reaches only ranks of our job instead of its peers;
// no data may pass between the jobs, each of its calls ends in time, and this job continues. `ours`, `theirs`: whether
// the job has a secret; the secrets differ. Skipped if the caller cannot be redirected, or a job with a secret cannot
// start.
void run_with_other_job(Rank& rank, bool ours, bool theirs);
// The same while our ranks start, each with a peer that does not come; both jobs have a secret. For backends that
// listen only then.
void run_with_other_job_early(Rank& rank);

}  // namespace backplane::conformance
