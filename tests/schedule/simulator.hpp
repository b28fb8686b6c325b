// SPDX-License-Identifier: Apache-2.0
//
// Runs the schedules of all ranks of a group without a network. Elements are symbols: what they are made of is known
// exactly, so a schedule that moves the right bits for the wrong reason is still caught.
//
// Messages follow the hardest rule that a backend may have: a send ends only when its recv is posted (rendezvous). A
// round ends when all its messages have, and only then the rank posts the next. Any breach of the rules of schedule.hpp
// is a SimulationError.
#pragma once

#include <cstdint>
#include <deque>
#include <stdexcept>
#include <vector>

#include "schedule/schedule.hpp"

namespace backplane::core::testing {

// One element. A fresh one has one contributor; combining unites them.
struct Symbol {
  uint64_t contributors = 0;  // bit per rank; 0: never written
  uint64_t index = 0;         // its place in the input it came from; only equal ones may be combined
  uint64_t expression = 0;    // hash of the tree of combinations, in which left and right do not matter
  friend bool operator==(const Symbol&, const Symbol&) = default;
};
Symbol fresh_symbol(int32_t rank, uint64_t index);

class SimulationError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One rank's buffers, in one memory so that input and output may overlap.
struct Memory {
  std::vector<Symbol> cells;
  uint64_t input_at = 0;
  uint64_t input_count = 0;
  uint64_t output_at = 0;
  uint64_t output_count = 0;
  uint64_t scratch_at = 0;  // set by simulate(), which appends the scratch
};

struct Traffic {
  uint64_t messages = 0;  // of the busiest rank: per round the larger of sends and recvs, summed
  uint64_t elements = 0;  // of the busiest rank: the larger of sent and received
  uint64_t depth = 0;     // rounds on the longest chain of messages that wait for each other
  bool in_order = true;   // every combination had all lower ranks on its left
  // Each rank's end comes after each other rank's beginning even if sends do not wait: it has received from it,
  // directly or through others.
  bool everyone_heard_everyone = true;
};

// Runs all ranks to their end in `memories`.
Traffic simulate(const std::vector<Schedule>& schedules, std::vector<Memory>& memories);

}  // namespace backplane::core::testing
