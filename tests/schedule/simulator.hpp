// SPDX-License-Identifier: Apache-2.0
//
// Runs the schedules of all ranks of a group without a network. Elements are symbols that record their contributors, so
// that a schedule that produces correct values by accident fails.
//
// Messages follow the strictest rule of a backend: a send ends only when its recv is posted (rendezvous). A rank posts
// the next round when all messages of the last one have ended. A violation of the rules of schedule.hpp is a
// SimulationError.
#pragma once

#include <cstdint>
#include <deque>
#include <stdexcept>
#include <vector>

#include "schedule/schedule.hpp"

namespace backplane::core::testing {

// One element. A fresh symbol has one contributor; combining two symbols unites their contributors.
struct Symbol {
  uint64_t contributors = 0;  // bit per rank; 0: never written
  uint64_t index = 0;         // its index in the input; only symbols of equal index may be combined
  uint64_t expression = 0;    // hash of the tree of combinations, independent of the order of operands
  friend bool operator==(const Symbol&, const Symbol&) = default;
};
Symbol fresh_symbol(int32_t rank, uint64_t index);

class SimulationError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The buffers of one rank, in one memory, so that input and output may overlap.
struct Memory {
  std::vector<Symbol> cells;
  uint64_t input_at = 0;
  uint64_t input_count = 0;
  uint64_t output_at = 0;
  uint64_t output_count = 0;
  uint64_t scratch_at = 0;  // set by simulate(), which appends scratch memory
};

struct Traffic {
  uint64_t messages = 0;  // of the busiest rank: per round the larger of sends and recvs, summed
  uint64_t elements = 0;  // of the busiest rank: the larger of sent and received
  uint64_t depth = 0;     // rounds of the longest chain of dependent messages
  bool in_order = true;   // all combinations had the lower ranks on the left
  // Each rank has received from each other rank, directly or through others, so that no rank ends before another
  // begins, even if sends do not wait.
  bool all_received_from_all = true;
  // With units: elements that the busiest unit sent to others or received from them, whichever is more.
  uint64_t between = 0;
};

// Runs all ranks in `memories` until they end. `units`: the unit of each rank; empty: there are none.
Traffic simulate(const std::vector<Schedule>& schedules, std::vector<Memory>& memories,
                 const std::vector<int32_t>& units = {});

}  // namespace backplane::core::testing
