// SPDX-License-Identifier: Apache-2.0
//
// Compares Backplane with a bare library. Both alternate in short batches, A B, B A, A B ..., so that other load
// affects both alike. The reported ratio is the median of the ratios within rounds. The fastest batches estimate the
// times of an idle machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"

namespace backplane::bench {

using Action = std::function<void()>;

// The arguments of a comparing program.
struct Arguments {
  bool json = false;    // instead of the table
  bool quick = false;   // a few calls of each, as a smoke test
  bool pin = false;     // each rank with all its threads to its own core
  double seconds = 4;   // per scenario
  std::string options;  // of the backend, as in "poll=0s&io_threads=2"
};
// --json, --quick, --pin, --seconds N, --options TEXT. Ends the process on wrong arguments and after --help.
Arguments parse(int argc, char** argv);

struct Scenario {
  std::string what;
  uint64_t bytes = 0;   // of one operation
  int calls = 1;        // per batch
  double per_call = 1;  // operations per call: 2 for a round trip
};

struct Outcome {
  Scenario scenario;
  size_t rounds = 0;
  double bare_us = 0;  // per operation; medians over the rounds
  double ours_us = 0;
  double fastest_bare_us = 0;
  double fastest_ours_us = 0;
  double ratio = 0;  // ours divided by bare
  double low = 0;    // its quartiles
  double high = 0;
};

// All ranks of `group` call it with the same scenario. A barrier precedes each batch, and rank 0 decides when to stop.
Outcome compare(const Scenario& scenario, const Arguments& arguments, ProcessGroup& group, const Action& bare,
                const Action& ours);

// The same for libraries whose threads poll and would take processor time from the other one: all ranks create the
// action for each turn and destroy it afterwards. A turn is two warm-up batches, then 50 ms of batches on rank 0 alone;
// their median counts.
using MakeAction = std::function<Action()>;
Outcome compare_apart(const Scenario& scenario, const Arguments& arguments, ProcessGroup& group, const MakeAction& bare,
                      const MakeAction& ours);

// Prints a table, or JSON, to stdout. `bare`: the name of the other library.
void print(const std::string& bare, const std::vector<Outcome>& outcomes, bool json);

}  // namespace backplane::bench
