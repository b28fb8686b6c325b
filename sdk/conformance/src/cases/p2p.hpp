// SPDX-License-Identifier: Apache-2.0
//
// The parts of group p2p.
#pragma once

#include <vector>

#include "../case.hpp"

namespace backplane::conformance {

std::vector<Case> p2p_contents_cases();   // messages arrive unchanged, and no other memory is written
std::vector<Case> p2p_lengths_cases();    // messages longer and shorter than their recv
std::vector<Case> p2p_matching_cases();   // which message goes to which recv
std::vector<Case> p2p_tags_cases();       // the tags that a recv reports and takes
std::vector<Case> p2p_announced_cases();  // a message that no memory could hold
std::vector<Case> p2p_flow_cases();       // blocking, buffering and memory
std::vector<Case> p2p_many_cases();       // many messages, many ranks

}  // namespace backplane::conformance
