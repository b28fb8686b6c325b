// SPDX-License-Identifier: Apache-2.0
//
// Shared by the cases of group `init`.
#pragma once

#include <vector>

#include "../case.hpp"
#include "init_plan.hpp"

namespace backplane::conformance::init {

// Sends a number to the next rank of the group and receives one from the previous rank. Leaves the body if the received
// number is wrong. `salt` distinguishes groups and rounds.
void ring(Rank& rank, Agent& agent, uint32_t salt);
// The same with each rank of the group, including this one.
void exchange_with_all(Rank& rank, Agent& agent, uint32_t salt);

}  // namespace backplane::conformance::init
