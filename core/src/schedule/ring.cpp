// SPDX-License-Identifier: Apache-2.0
#include "schedule/ring.hpp"

namespace backplane::core {

uint64_t ring_scratch(const CollectiveSpec& spec, const Blocks& blocks) { return 2 * blocks.largest(spec.world_size); }

void ring_reduce_scatter(Builder& builder, const CollectiveSpec& spec, const Blocks& blocks, Region result) {
  const int32_t hops = spec.world_size - 1;
  if (hops == 0) builder.copy(result, blocks.in(BufferRole::kInput, spec.rank));
  for (int32_t hop = 0; hop < hops; ++hop) ring_reduce_scatter_hop(builder, spec, blocks, result, 0, hop);
}

void ring_reduce_scatter_hop(Builder& builder, const CollectiveSpec& spec, const Blocks& blocks, Region result,
                             uint64_t scratch_at, int32_t hop) {
  const int32_t rank = spec.rank;
  const int32_t outgoing = neighbor(spec, rank, -1 - hop);
  const int32_t incoming = neighbor(spec, rank, -2 - hop);
  const uint64_t even = scratch_at;
  const uint64_t odd = scratch_at + blocks.largest(spec.world_size);
  const Region partial = scratch(hop % 2 == 0 ? odd : even, blocks.count(outgoing));  // from the hop before
  const Region slot = scratch(hop % 2 == 0 ? even : odd, blocks.count(incoming));
  builder.send(neighbor(spec, rank, 1), hop == 0 ? blocks.in(BufferRole::kInput, outgoing) : partial);
  builder.recv(neighbor(spec, rank, -1), slot);
  if (hop + 2 < spec.world_size) {
    builder.reduce(slot, blocks.in(BufferRole::kInput, incoming), Order::kTargetFirst);
  } else {
    builder.copy(result, blocks.in(BufferRole::kInput, rank));
    builder.reduce(result, slot, Order::kSourceFirst, true);
  }
  builder.end_round();
}

void ring_all_gather(Builder& builder, const CollectiveSpec& spec, const Blocks& blocks) {
  for (int32_t hop = 0; hop + 1 < spec.world_size; ++hop) ring_all_gather_hop(builder, spec, blocks, hop);
}

void ring_all_gather_hop(Builder& builder, const CollectiveSpec& spec, const Blocks& blocks, int32_t hop) {
  builder.send(neighbor(spec, spec.rank, 1), blocks.in(BufferRole::kOutput, neighbor(spec, spec.rank, -hop)));
  builder.recv(neighbor(spec, spec.rank, -1), blocks.in(BufferRole::kOutput, neighbor(spec, spec.rank, -hop - 1)));
  builder.end_round();
}

}  // namespace backplane::core
