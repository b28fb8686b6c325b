// SPDX-License-Identifier: Apache-2.0
//
// Performs a collective that a backend lacks: runs its schedule over the backend's sends and receives.
#pragma once

#include <cstdint>

#include "deadline.hpp"
#include "group/agent.hpp"
#include "group/operation.hpp"

namespace backplane::core {

// Runs the whole collective on the calling thread, over operation.agent. Host memory only. `seq` makes the tag of its
// messages. Throws core::Error: BP_TIMEOUT names a rank from which nothing came. When it returns or throws, none of its
// messages is in flight; if they cannot be cancelled, it aborts the agent.
void run_collective(const Operation& operation, int32_t rank, int32_t world_size, uint64_t seq, Deadline deadline);

}  // namespace backplane::core
