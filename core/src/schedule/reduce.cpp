// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"
#include "schedule/ring.hpp"

namespace backplane::core {

// Operands stand in the order of the ranks. With a root other than 0 the one subtree that wraps around the last rank
// cannot keep to that; its combination is still the same in every run.
Schedule binomial_reduce(const Problem& problem) {
  const BinomialTree tree(problem);
  const uint64_t count = problem.count;
  const Region own = input(0, count);
  Builder builder;
  if (!tree.is_root() && tree.children().empty()) {
    builder.send(tree.parent(), own);
    return std::move(builder).finish();
  }
  // Only the root has an output. The others receive their first child straight into the sum and add their input to it,
  // which spares a copy; the root must not, as its output may be its input.
  const Region sum = tree.is_root() ? output(0, count) : scratch(count, count);
  const Region arrived = scratch(0, count);
  bool started = tree.is_root();
  if (started) builder.copy(sum, own);
  builder.end_round();
  for (const Subtree& child : tree.children()) {
    const bool child_first = child.rank < problem.rank;
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

// Ring reduce_scatter, then every rank hands its chunk to the root (Thakur, Rabenseifner, Gropp 2005, section 4.4, with
// a ring for their recursive halving). The gather is direct: it is for large counts, where the forwarding of a tree
// costs more than the start of a message.
Schedule ring_reduce(const Problem& problem) {
  const Blocks chunks = Blocks::balanced(problem.count, problem.world_size);
  const int32_t rank = problem.rank;
  const bool is_root = rank == problem.root;
  const Region own =
      is_root ? chunks.in(Where::kOutput, rank) : scratch(ring_scratch(problem, chunks), chunks.count(rank));
  Builder builder;
  ring_reduce_scatter(builder, problem, chunks, own);
  builder.end_round();
  if (!is_root) {
    builder.send(problem.root, own);
    return std::move(builder).finish();
  }
  for (int32_t distance = 1; distance < problem.world_size; ++distance) {
    const int32_t peer = around(problem, rank, distance);
    builder.recv(peer, chunks.in(Where::kOutput, peer));
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
