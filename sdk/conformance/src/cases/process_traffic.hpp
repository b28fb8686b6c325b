// SPDX-License-Identifier: Apache-2.0
//
// Verified background traffic for cases that do something else meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rank.hpp"

namespace backplane::conformance {

// The data that `sender` sends to `receiver` (ranks of the agent) under this tag.
std::vector<char> payload(int32_t sender, int32_t receiver, uint64_t tag, size_t bytes);

// Each rank of the agent sends `bytes` to each of `peers` (ranks of the agent; itself if it is alone) and receives as
// much. Leaves the body on an error or after 10 s (scaled). All peers must call it.
void exchange(Rank& rank, Agent& agent, const std::vector<int32_t>& peers, uint64_t tag, size_t bytes);
// The same among all ranks of the agent.
void exchange(Rank& rank, Agent& agent, uint64_t tag, size_t bytes);
// The same in a group that all ranks of the job start now, and end.
void exchange_in_new_group(Rank& rank);
// A message to the next rank of the agent and one from the previous.
void pass_round(Rank& rank, Agent& agent, uint64_t tag, size_t bytes);

}  // namespace backplane::conformance
