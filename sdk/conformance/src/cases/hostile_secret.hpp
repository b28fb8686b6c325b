// SPDX-License-Identifier: Apache-2.0
//
// A rank of another job connects to the ranks of this one.
#pragma once

#include "rank.hpp"

namespace backplane::conformance {

// The members of such a case. Ranks 0 and 1 are this job. Rank 2 is the caller, of the other job. Ranks 3 and 4 are its
// former peers. One extra process is the relay.
constexpr int32_t kMeetingRanks = 5;

// Runs such a case, on all members. The caller reaches only ranks of our job instead of its peers. No data may pass
// between the jobs, each call of the caller must end in time, and this job must continue. `ours`, `theirs`: whether the
// job has a secret; the secrets differ. Skips the case if the caller cannot be redirected, or a job with a secret
// cannot start.
void run_with_other_job(Rank& rank, bool ours, bool theirs);
// The same while our ranks start, each with a peer that does not join. Both jobs have a secret. For backends that
// listen only during the start.
void run_with_other_job_early(Rank& rank);

}  // namespace backplane::conformance
