// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"
#include "schedule/ring.hpp"

namespace backplane::core {

namespace {

Blocks input_blocks(const Problem& problem) {
  if (problem.kind == BP_REDUCE_SCATTERV) return Blocks::varying(problem.in_counts, problem.in_displs);
  return Blocks::equal(problem.count);
}

}  // namespace

Schedule ring_reduce_scatter(const Problem& problem) {
  const Blocks blocks = input_blocks(problem);
  Builder builder;
  ring_reduce_scatter(builder, problem, blocks, output(0, blocks.count(problem.rank)));
  return std::move(builder).finish();
}

// Thakur, Rabenseifner, Gropp 2005, section 4.3: at distance d every rank hands its part of a block straight to the
// block's owner. In place the output is the input's own block, the only one that is never sent.
Schedule pairwise_reduce_scatter(const Problem& problem) {
  const Blocks blocks = input_blocks(problem);
  const int32_t rank = problem.rank;
  const Region sum = output(0, blocks.count(rank));
  const Region arrived = scratch(0, blocks.count(rank));
  Builder builder;
  builder.copy(sum, blocks.in(Where::kInput, rank));
  builder.end_round();
  for (int32_t distance = 1; distance < problem.world_size; ++distance) {
    const int32_t to = around(problem, rank, distance);
    const int32_t from = around(problem, rank, -distance);
    builder.send(to, blocks.in(Where::kInput, to));
    builder.recv(from, arrived);
    const bool completes = distance + 1 == problem.world_size;
    builder.reduce(sum, arrived, from < rank ? Order::kSourceFirst : Order::kTargetFirst, completes);
    builder.end_round();
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
