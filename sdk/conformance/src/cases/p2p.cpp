// SPDX-License-Identifier: Apache-2.0
#include "p2p.hpp"

namespace backplane::conformance {

std::vector<Case> p2p_cases() {
  std::vector<Case> all;
  for (const auto& part : {p2p_contents_cases(), p2p_lengths_cases(), p2p_matching_cases(), p2p_tags_cases(),
                           p2p_announced_cases(), p2p_flow_cases(), p2p_many_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace backplane::conformance
