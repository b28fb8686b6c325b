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

// Ring reduce_scatter, then every rank sends its chunk to the root (Thakur, Rabenseifner, Gropp 2005, section 4.4, with
// a ring instead of their recursive halving). For large counts, for which forwarding in a tree costs more than the
// start of a message.
Schedule ring_reduce(const CollectiveSpec& spec) {
  const Blocks chunks = Blocks::balanced(spec.count, spec.world_size);
  const int32_t rank = spec.rank;
  const bool is_root = rank == spec.root;
  const Region own =
      is_root ? chunks.in(BufferRole::kOutput, rank) : scratch(ring_scratch(spec, chunks), chunks.count(rank));
  Builder builder;
  ring_reduce_scatter(builder, spec, chunks, own);
  builder.end_round();
  if (!is_root) {
    builder.send(spec.root, own);
    return std::move(builder).finish();
  }
  for (int32_t distance = 1; distance < spec.world_size; ++distance) {
    const int32_t peer = neighbor(spec, rank, distance);
    builder.recv(peer, chunks.in(BufferRole::kOutput, peer));
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
