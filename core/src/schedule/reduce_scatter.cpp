// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"
#include "schedule/ring.hpp"

namespace backplane::core {

namespace {

Blocks input_blocks(const CollectiveSpec& spec) {
  if (spec.kind == BP_REDUCE_SCATTERV) return Blocks::varying(spec.in_counts, spec.in_displs);
  return Blocks::equal(spec.count);
}

}  // namespace

Schedule ring_reduce_scatter(const CollectiveSpec& spec) {
  const Blocks blocks = input_blocks(spec);
  Builder builder;
  ring_reduce_scatter(builder, spec, blocks, output(0, blocks.count(spec.rank)));
  return std::move(builder).finish();
}

// Thakur, Rabenseifner, Gropp 2005, section 4.3: at distance d every rank sends its part of a block to the block's
// owner. In place, the output is this rank's block of the input, which is never sent.
Schedule pairwise_reduce_scatter(const CollectiveSpec& spec) {
  const Blocks blocks = input_blocks(spec);
  const int32_t rank = spec.rank;
  const Region sum = output(0, blocks.count(rank));
  const Region arrived = scratch(0, blocks.count(rank));
  Builder builder;
  builder.copy(sum, blocks.in(BufferRole::kInput, rank));
  builder.end_round();
  for (int32_t distance = 1; distance < spec.world_size; ++distance) {
    const int32_t to = neighbor(spec, rank, distance);
    const int32_t from = neighbor(spec, rank, -distance);
    builder.send(to, blocks.in(BufferRole::kInput, to));
    builder.recv(from, arrived);
    const bool completes = distance + 1 == spec.world_size;
    builder.reduce(sum, arrived, from < rank ? Order::kSourceFirst : Order::kTargetFirst, completes);
    builder.end_round();
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
