// SPDX-License-Identifier: Apache-2.0
#include "schedule/ring.hpp"

namespace backplane::core {

uint64_t ring_scratch(const Problem& problem, const Blocks& blocks) { return 2 * blocks.largest(problem.world_size); }

void ring_reduce_scatter(Builder& builder, const Problem& problem, const Blocks& blocks, Region result) {
  const int32_t rank = problem.rank;
  const int32_t hops = problem.world_size - 1;
  const Region own = blocks.in(Where::kInput, rank);
  if (hops == 0) builder.copy(result, own);
  const uint64_t slot_size = blocks.largest(problem.world_size);
  Region arrived;  // the partial result of the hop before
  for (int32_t hop = 0; hop < hops; ++hop) {
    const int32_t leaving = around(problem, rank, -1 - hop);
    const int32_t coming = around(problem, rank, -2 - hop);
    const Region slot = scratch(hop % 2 == 0 ? 0 : slot_size, blocks.count(coming));
    builder.send(around(problem, rank, 1), hop == 0 ? blocks.in(Where::kInput, leaving) : arrived);
    builder.recv(around(problem, rank, -1), slot);
    if (hop + 1 < hops) {
      builder.reduce(slot, blocks.in(Where::kInput, coming), Order::kTargetFirst);
    } else {
      builder.copy(result, own);
      builder.reduce(result, slot, Order::kSourceFirst);
    }
    builder.end_round();
    arrived = slot;
  }
}

void ring_all_gather(Builder& builder, const Problem& problem, const Blocks& blocks) {
  for (int32_t hop = 0; hop + 1 < problem.world_size; ++hop) {
    builder.send(around(problem, problem.rank, 1), blocks.in(Where::kOutput, around(problem, problem.rank, -hop)));
    builder.recv(around(problem, problem.rank, -1), blocks.in(Where::kOutput, around(problem, problem.rank, -hop - 1)));
    builder.end_round();
  }
}

}  // namespace backplane::core
