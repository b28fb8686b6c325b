// SPDX-License-Identifier: Apache-2.0
//
// Facts that a child has read from a backend's descriptor. The supervisor itself never opens the plugin.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "case.hpp"

namespace backplane::conformance {

struct Facts {
  bool known = false;  // false: no child could read the descriptor
  std::string vendor;
  std::string id;
  std::string version;
  uint32_t kinds = 0;  // BP_KIND_...
  uint32_t flags = 0;
  bool is_single = false;                          // the plugin has no other backend
  std::string refusal;                             // why the backend's probe says BP_UNSUPPORTED; empty if it does not
  std::map<uint32_t, bp_capability> capabilities;  // by op

  uint64_t ops() const;
  // Adds the fields of a kFacts record.
  void add(const std::vector<std::string>& fields);
};

// The case whose body sends the records.
const Case& describing();

// Why the case cannot be run on such a backend with so many ranks; empty if it can.
std::string inapplicable(const Case& which, const Facts& facts, int32_t ranks, bool from_file);

// The world sizes to run the case at: the case's own, otherwise `ranks`, which the user chose. If `ranks` is 1, only
// worlds of one rank; empty if the case has none.
std::vector<int32_t> worlds(const Case& which, int32_t ranks);

}  // namespace backplane::conformance
