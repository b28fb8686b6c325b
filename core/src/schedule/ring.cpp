// SPDX-License-Identifier: Apache-2.0
#include "schedule/ring.hpp"

namespace backplane::core {

uint64_t ring_scratch(const Problem& problem, const Blocks& blocks) { return 2 * blocks.largest(problem.world_size); }

void ring_reduce_scatter(Builder& builder, const Problem& problem, const Blocks& blocks, Region result) {
  const int32_t hops = problem.world_size - 1;
  if (hops == 0) builder.copy(result, blocks.in(Where::kInput, problem.rank));
  for (int32_t hop = 0; hop < hops; ++hop) ring_reduce_scatter_hop(builder, problem, blocks, result, 0, hop);
}

void ring_reduce_scatter_hop(Builder& builder, const Problem& problem, const Blocks& blocks, Region result,
                             uint64_t scratch_at, int32_t hop) {
  const int32_t rank = problem.rank;
  const int32_t leaving = around(problem, rank, -1 - hop);
  const int32_t coming = around(problem, rank, -2 - hop);
  const uint64_t even = scratch_at;
  const uint64_t odd = scratch_at + blocks.largest(problem.world_size);
  const Region partial = scratch(hop % 2 == 0 ? odd : even, blocks.count(leaving));  // from the hop before
  const Region slot = scratch(hop % 2 == 0 ? even : odd, blocks.count(coming));
  builder.send(around(problem, rank, 1), hop == 0 ? blocks.in(Where::kInput, leaving) : partial);
  builder.recv(around(problem, rank, -1), slot);
  if (hop + 2 < problem.world_size) {
    builder.reduce(slot, blocks.in(Where::kInput, coming), Order::kTargetFirst);
  } else {
    builder.copy(result, blocks.in(Where::kInput, rank));
    builder.reduce(result, slot, Order::kSourceFirst, true);
  }
  builder.end_round();
}

void ring_all_gather(Builder& builder, const Problem& problem, const Blocks& blocks) {
  for (int32_t hop = 0; hop + 1 < problem.world_size; ++hop) ring_all_gather_hop(builder, problem, blocks, hop);
}

void ring_all_gather_hop(Builder& builder, const Problem& problem, const Blocks& blocks, int32_t hop) {
  builder.send(around(problem, problem.rank, 1), blocks.in(Where::kOutput, around(problem, problem.rank, -hop)));
  builder.recv(around(problem, problem.rank, -1), blocks.in(Where::kOutput, around(problem, problem.rank, -hop - 1)));
  builder.end_round();
}

}  // namespace backplane::core
