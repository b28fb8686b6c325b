// SPDX-License-Identifier: Apache-2.0
//
// What the supervisor knows of a backend without ever opening its plugin: what a child has read from the descriptor.
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

// The world sizes to run the case at, where the user asked for `ranks`: its own, or else that one. Asked for one rank,
// nothing is said about worlds of several; empty if the case has no other.
std::vector<int32_t> worlds(const Case& which, int32_t ranks);

}  // namespace backplane::conformance
