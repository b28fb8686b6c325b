// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"
#include "schedule/ring.hpp"

namespace backplane::core {

// Operands are in the order of ranks, except, with a root other than 0, in the subtree that wraps around the last rank.
// The order is the same in every run.
Schedule binomial_reduce(const CollectiveSpec& spec) {
  const BinomialTree tree(spec);
  const uint64_t count = spec.count;
  const Region own = input(0, count);
  Builder builder;
  if (!tree.is_root() && tree.children().empty()) {
    builder.send(tree.parent(), own);
    return std::move(builder).finish();
  }
  // Only the root has an output. The others receive their first child into the sum and add their input to it, which
  // saves a copy. The root does not, because its output may be its input.
  const Region sum = tree.is_root() ? output(0, count) : scratch(count, count);
  const Region arrived = scratch(0, count);
  bool started = tree.is_root();
  if (started) builder.copy(sum, own);
  builder.end_round();
  for (const Subtree& child : tree.children()) {
    const bool child_first = child.rank < spec.rank;
    builder.recv(child.rank, started ? arrived : sum);
    if (started) {
      const bool completes = tree.is_root() && &child == &tree.children().back();
      builder.reduce(sum, arrived, child_first ? Order::kSourceFirst : Order::kTargetFirst, completes);
    } else {
      builder.reduce(sum, own, child_first ? Order::kTargetFirst : Order::kSourceFirst);
    }
    builder.end_round();
    started = true;
  }
  if (!tree.is_root()) builder.send(tree.parent(), sum);
  return std::move(builder).finish();
}

namespace {

// In larger worlds the chunks reach the root along the ring: the root then needs two connections instead of one to each
// rank. In smaller ones each rank sends its chunk to the root, which takes one round.
constexpr int32_t kMaxLinearRanks = 16;

void send_to_root(Builder& builder, const CollectiveSpec& spec, const Blocks& chunks, const Region& own) {
  if (spec.rank != spec.root) return builder.send(spec.root, own);
  for (int32_t distance = 1; distance < spec.world_size; ++distance) {
    const int32_t peer = neighbor(spec, spec.rank, distance);
    builder.recv(peer, chunks.in(BufferRole::kOutput, peer));
  }
}

// In hop h each rank passes on the chunk of the rank h places before it. The rank after the root passes on its own
// only. Received chunks alternate between two places in scratch memory, from `scratch_at` on.
void forward_to_root(Builder& builder, const CollectiveSpec& spec, const Blocks& chunks, const Region& own,
                     uint64_t scratch_at) {
  const int32_t distance = neighbor(spec, spec.root, -spec.rank);  // to the root along the ring
  const uint64_t largest = chunks.largest(spec.world_size);
  Region held = own;
  for (int32_t hop = 0; hop + distance < spec.world_size; ++hop) {
    if (distance > 0) builder.send(neighbor(spec, spec.rank, 1), held);
    if (hop + distance + 1 < spec.world_size) {
      const int32_t origin = neighbor(spec, spec.rank, -hop - 1);
      held = distance == 0 ? chunks.in(BufferRole::kOutput, origin)
                           : scratch(scratch_at + (hop % 2 == 0 ? 0 : largest), chunks.count(origin));
      builder.recv(neighbor(spec, spec.rank, -1), held);
    }
    builder.end_round();
  }
}

}  // namespace

// Ring reduce_scatter, then every rank sends its chunk to the root (Thakur, Rabenseifner, Gropp 2005, section 4.4, with
// a ring instead of their recursive halving). For large counts, for which forwarding in a tree costs more than the
// start of a message.
Schedule ring_reduce(const CollectiveSpec& spec) {
  const Blocks chunks = Blocks::balanced(spec.count, spec.world_size);
  const uint64_t own_at = ring_scratch(spec, chunks);
  const bool is_root = spec.rank == spec.root;
  const Region own = is_root ? chunks.in(BufferRole::kOutput, spec.rank) : scratch(own_at, chunks.count(spec.rank));
  Builder builder;
  ring_reduce_scatter(builder, spec, chunks, own);
  builder.end_round();
  if (spec.world_size <= kMaxLinearRanks) {
    send_to_root(builder, spec, chunks, own);
  } else {
    forward_to_root(builder, spec, chunks, own, own_at + chunks.largest(spec.world_size));
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
