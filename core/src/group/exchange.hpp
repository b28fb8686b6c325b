// SPDX-License-Identifier: Apache-2.0
//
// Performs a collective that a backend lacks, by running its schedule over the backend's sends and receives.
#pragma once

#include <cstdint>

#include "deadline.hpp"
#include "group/agent.hpp"
#include "group/validate.hpp"

namespace backplane::core {

// Runs the whole collective on the calling thread. Host memory only. Throws core::Error: BP_TIMEOUT names a rank from
// which nothing came. When it returns or throws, no message of it is in flight any more; if that could be had only by
// aborting the agent, the agent is aborted.
void run_collective(Agent& agent, const ValidOp& valid, int32_t rank, int32_t world_size, uint64_t seq,
                    Deadline deadline);

}  // namespace backplane::core
