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
  uint32_t flags = 0;
  std::map<uint32_t, bp_capability> capabilities;  // by op

  uint64_t ops() const;
  // Takes a kFacts record in.
  void add(const std::vector<std::string>& fields);
};

// The case whose body sends the records.
const Case& describing();

// Why the case cannot be run on such a backend with so many ranks; empty if it can.
std::string inapplicable(const Case& which, const Facts& facts, int32_t ranks, bool from_file);

// The world sizes to run the case at: the case's own, else `ranks`, which the user asked for. With `ranks` 1 only those
// of one rank; empty if the case has none.
std::vector<int32_t> worlds(const Case& which, int32_t ranks);

}  // namespace backplane::conformance
