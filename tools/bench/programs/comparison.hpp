// SPDX-License-Identifier: Apache-2.0
//
// Two ways of doing the same thing, timed side by side. They take turns in short batches, A B, B A, A B ..., so that
// whatever else the machine does slows both alike; what is reported as the ratio is the median over the rounds of the
// ratio within a round, which shared noise leaves alone. The fastest batches show what a quiet machine would.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"

namespace backplane::bench {

using Action = std::function<void()>;

// A program that holds contests.
struct Arguments {
  bool json = false;    // instead of the table
  bool quick = false;   // a few calls of each, to see that everything runs
  bool pin = false;     // each rank, the bare library's threads and ours alike, to a core of its own
  double seconds = 4;   // of each contest
  std::string options;  // of the backend, as in "poll=0s&io_threads=2"
};
// --json, --quick, --pin, --seconds N, --options TEXT. Ends the process on wrong arguments and after --help.
Arguments parse(int argc, char** argv);

struct Scenario {
  std::string what;
  uint64_t bytes = 0;   // of one operation
  int calls = 1;        // per batch
  double per_call = 1;  // operations in a call: a round trip is two messages
};

struct Outcome {
  Scenario scenario;
  size_t rounds = 0;
  double bare_us = 0;  // per operation; medians over the rounds
  double ours_us = 0;
  double fastest_bare_us = 0;
  double fastest_ours_us = 0;
  double ratio = 0;  // ours to bare
  double low = 0;    // its quartiles
  double high = 0;
};

// All ranks of `group` call it with the same scenario; they meet in it before each batch, and rank 0 says when to stop.
Outcome compare(const Scenario& scenario, const Arguments& arguments, ProcessGroup& group, const Action& bare,
                const Action& ours);

// The same for sides whose threads poll, which would take the processors from the other one's: a side is there only
// while it has its turn. That is as many batches, by rank 0 alone, as there is time for in 50 ms, of which the median
// counts, behind two to warm up. All ranks make a side; it goes with the action.
using MakeAction = std::function<Action()>;
Outcome compare_apart(const Scenario& scenario, const Arguments& arguments, ProcessGroup& group, const MakeAction& bare,
                      const MakeAction& ours);

// Prints a table, or JSON, to stdout. `bare` names the library that ours is compared with.
void print(const std::string& bare, const std::vector<Outcome>& outcomes, bool json);

}  // namespace backplane::bench
