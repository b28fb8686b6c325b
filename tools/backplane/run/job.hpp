// SPDX-License-Identifier: Apache-2.0
//
// A job from its beginning to its end: the store through which its ranks meet, the ranks, and what is left of them.
#pragma once

#include <string>

#include "run/guard.hpp"
#include "run/launch.hpp"
#include "run/rank_environment.hpp"
#include "run/signals.hpp"

namespace backplane::tool {

std::string random_job_id();

// Starts the ranks of this node and returns the exit code: 0 if all ended well. Fills in the job's port. `guard` is
// this job's alone, and was made while the process had one thread.
int run_job(Job& job, const Plan& plan, Signals& signals, Guard& guard);

}  // namespace backplane::tool
