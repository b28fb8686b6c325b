// SPDX-License-Identifier: Apache-2.0
//
// The parts of the group `init`.
#pragma once

#include <vector>

#include "../case.hpp"
#include "init_plan.hpp"

namespace backplane::conformance::init {

std::vector<Case> world_cases();    // groups that start as expected
std::vector<Case> trouble_cases();  // ranks that are wrong, late or missing
std::vector<Case> session_cases();  // one group after, beside and before another

// Sends a number to the next rank of the group and receives one from the previous; leaves the body if it is not that
// number. `salt` tells groups and rounds apart.
void ring(Rank& rank, Agent& agent, uint32_t salt);
// The same with every rank of the group, this one among them.
void exchange_with_all(Rank& rank, Agent& agent, uint32_t salt);

}  // namespace backplane::conformance::init
