// SPDX-License-Identifier: Apache-2.0
//
// Group `load`: the file, its descriptor, and its compatibility with cores of other minor versions. Cases that set
// `loads` to false open the plugin themselves. Each of them then reports why a plugin cannot be opened or described.
#include "load_groups.hpp"

namespace backplane::conformance {

std::vector<Case> load_cases() {
  std::vector<Case> all = load::file_cases();
  for (const std::vector<Case>& part : {load::contract_cases(), load::manners_cases(), load::structs_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace backplane::conformance
