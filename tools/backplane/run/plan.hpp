// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a node run, and how.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "run/pmix.hpp"

namespace backplane::tool {

struct Plan {
  std::string path;
  std::vector<std::string> arguments;  // the program's name first
  std::optional<std::chrono::nanoseconds> timeout;
  std::chrono::nanoseconds grace{};  // between SIGTERM and SIGKILL
  bool prefix = false;               // prefix each line of output with its rank
  int output = 1;                    // standard output of ranks without a prefix
  int inherited = -1;                // a descriptor that the ranks inherit; -1 for none
  bool keep_going = false;           // a failed rank does not end the others
  bool offers_pmi = true;            // MPICH and Intel MPI may start in the ranks
  PmixUse pmix = PmixUse::kNo;       // Open MPI may
};

}  // namespace backplane::tool
