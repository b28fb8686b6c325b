// SPDX-License-Identifier: Apache-2.0
//
// A collective in a test: the buffers of every rank before it, and their expected content after it, by the table of
// backplane/abi/op.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.hpp"
#include "schedule/simulator.hpp"
#include "schedule/topology.hpp"

namespace backplane::core::testing {

struct Shape {
  uint32_t kind = BP_BARRIER;
  int32_t world_size = 1;
  int32_t root = 0;
  uint64_t count = 0;  // v-variants: the largest size of blocks, some of which are empty
  bool in_place = false;
  uint64_t element_size = 1;  // bytes
  const Topology* topology = nullptr;
};

std::vector<uint32_t> collective_kinds();
bool is_rooted(uint32_t kind);
bool is_varying(uint32_t kind);
bool is_cut(uint32_t kind);        // algorithms may cut its count into chunks; for other kinds they move whole blocks
bool has_in_place(uint32_t kind);  // optionally
std::string name_of_kind(uint32_t kind);

class CollectiveCase {
 public:
  explicit CollectiveCase(const Shape& shape);

  CollectiveSpec spec(int32_t rank) const;
  std::vector<Memory> memories() const;
  // Throws SimulationError if the content of a rank's buffers is wrong.
  void check(const std::vector<Memory>& after) const;

 private:
  struct Blocks {
    std::vector<uint64_t> counts, displs;
    uint64_t extent = 0;  // elements of the whole buffer
  };
  uint64_t block_count(int32_t from, int32_t to) const;
  Blocks lay_out(const std::vector<uint64_t>& counts) const;
  Blocks input_blocks(int32_t rank) const;
  Blocks output_blocks(int32_t rank) const;
  std::vector<Symbol> expected_output(int32_t rank) const;
  Memory memory(int32_t rank) const;

  Shape shape_;
  std::vector<Blocks> inputs_, outputs_;
};

// Runs the schedules of all ranks and checks the results. Throws SimulationError.
Traffic run_and_check(Algorithm algorithm, const Shape& shape);

}  // namespace backplane::core::testing
