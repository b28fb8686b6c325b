// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

Schedule binomial_broadcast(const Problem& problem) {
  const BinomialTree tree(problem);
  const Region all = output(0, problem.count);
  Builder builder;
  if (tree.is_root()) {
    builder.copy(all, input(0, problem.count));
  } else {
    builder.recv(tree.parent(), all);
  }
  builder.end_round();
  for (const Subtree& child : tree.children_largest_first()) {  // the longest way first
    builder.send(child.rank, all);
    builder.end_round();
  }
  return std::move(builder).finish();
}

// Scatter down the binomial tree, then all_gather around the ring (van de Geijn; Thakur, Rabenseifner, Gropp 2005,
// section 4.2). The output is cut into one chunk per place, so that a subtree's chunks lie side by side. A rank that
// passed chunks on in the scatter has them already: its neighbour leaves them out of the ring, and so the root, whose
// output is its input, receives nothing at all.
Schedule ring_broadcast(const Problem& problem) {
  const BinomialTree tree(problem);
  const Blocks chunks = Blocks::balanced(problem.count, problem.world_size);
  const auto chunks_of = [&chunks](const Subtree& subtree) {
    const int32_t last = subtree.place + subtree.span - 1;
    return output(chunks.offset(subtree.place),
                  chunks.offset(last) + chunks.count(last) - chunks.offset(subtree.place));
  };
  Builder builder;
  if (tree.is_root()) {
    builder.copy(output(0, problem.count), input(0, problem.count));
  } else {
    builder.recv(tree.parent(), chunks_of(tree.own()));
  }
  builder.end_round();
  for (const Subtree& child : tree.children_largest_first()) {
    builder.send(child.rank, chunks_of(child));
    builder.end_round();
  }

  const int32_t place = tree.own().place;
  const Subtree next = tree.subtree(around(problem, place, 1));
  const int32_t previous = around(problem, problem.rank, -1);
  const auto has = [](const Subtree& subtree, int32_t chunk) {
    return chunk >= subtree.place && chunk < subtree.place + subtree.span;
  };
  for (int32_t hop = 0; hop + 1 < problem.world_size; ++hop) {
    const int32_t leaving = around(problem, place, -hop);
    const int32_t coming = around(problem, place, -hop - 1);
    if (!has(next, leaving)) builder.send(next.rank, chunks.in(Where::kOutput, leaving));
    if (!has(tree.own(), coming)) builder.recv(previous, chunks.in(Where::kOutput, coming));
    builder.end_round();
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
