// SPDX-License-Identifier: Apache-2.0
//
// The jobs that measure. Each is a contestant: Backplane's backends side by side in one, a peer in another.
#pragma once

#include <string>
#include <vector>

#include "measure/results.hpp"
#include "measure/task.hpp"
#include "run/signals.hpp"

namespace backplane::tool {

struct Contestant {
  std::vector<std::string> subjects;  // as the report names them
  std::vector<std::string> command;   // the program first; then come the task's arguments,
  std::vector<std::string> more;      // these,
  bool wants_directory = false;       // and the name of an empty directory in which the ranks may meet
  bool launches_itself = false;       // one process is started, which starts the ranks
  bool is_peer = false;
};

// Backends that join processes as one contestant, those whose ranks must be threads as another. `names` are what
// --backend takes; empty: all that join processes and are viable. Throws Failure if one cannot take part.
std::vector<Contestant> contestants_of(const std::vector<std::string>& names, int ranks);

// Runs one job and returns its exit code. `findings` is what its ranks have found; their subjects are indices of
// contestant.subjects.
int run_contestant(const Contestant& contestant, int ranks, bench::Task task, Signals& signals,
                   std::vector<bench::Finding>& findings);

}  // namespace backplane::tool
