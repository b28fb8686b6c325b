// SPDX-License-Identifier: Apache-2.0
//
// Performs a collective that a backend lacks, by a schedule over the backend's sends and receives.
#pragma once

#include <cstdint>

#include "deadline.hpp"
#include "group/agent.hpp"
#include "group/operation.hpp"

namespace backplane::core {

// Set in `seq` of a collective that is no user's: its messages are not those of the user's collective #seq.
inline constexpr uint64_t kOwnMessages = UINT64_C(1) << 62;

// Performs the collective on the calling thread, over operation.agent. Host memory only. `seq` is part of the messages'
// tag. Throws core::Error; BP_TIMEOUT names the rank that did not send or receive. No message is in flight afterwards;
// if messages cannot be cancelled, it aborts the agent.
void run_collective(const Operation& operation, int32_t rank, int32_t world_size, uint64_t seq, Deadline deadline);

}  // namespace backplane::core
