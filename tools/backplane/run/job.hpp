// SPDX-License-Identifier: Apache-2.0
//
// A job from start to end: its store and its ranks.
#pragma once

#include <string>

#include "run/guard.hpp"
#include "run/launch.hpp"
#include "run/rank_environment.hpp"
#include "run/signals.hpp"

namespace backplane::tool {

std::string random_job_id();

// Runs the ranks of this node and returns the exit code, 0 if all succeeded. Sets the job's port if it was 0. `guard`
// serves this job alone, and was constructed while the process had one thread.
int run_job(Job& job, const Plan& plan, Signals& signals, Guard& guard);

}  // namespace backplane::tool
