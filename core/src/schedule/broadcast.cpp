// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

Schedule binomial_broadcast(const CollectiveSpec& spec) {
  const BinomialTree tree(spec);
  const Region all = output(0, spec.count);
  Builder builder;
  if (tree.is_root()) {
    builder.copy(all, input(0, spec.count));
  } else {
    builder.recv(tree.parent(), all);
  }
  builder.end_round();
  for (const Subtree& child : tree.children_largest_first()) {
    builder.send(child.rank, all);
    builder.end_round();
  }
  return std::move(builder).finish();
}

// Scatter down the binomial tree, then all_gather around the ring (van de Geijn; Thakur, Rabenseifner, Gropp 2005,
// section 4.2). The output is cut into one chunk per relative rank, so that the chunks of a subtree are adjacent. A
// rank has the chunks that it forwarded in the scatter, so its neighbor does not send them again. The root, whose
// output is its input, therefore receives nothing.
Schedule ring_broadcast(const CollectiveSpec& spec) {
  const BinomialTree tree(spec);
  const Blocks chunks = Blocks::balanced(spec.count, spec.world_size);
  const auto chunks_of = [&chunks](const Subtree& subtree) {
    const int32_t last = subtree.relative_rank + subtree.span - 1;
    return output(chunks.offset(subtree.relative_rank),
                  chunks.offset(last) + chunks.count(last) - chunks.offset(subtree.relative_rank));
  };
  Builder builder;
  if (tree.is_root()) {
    builder.copy(output(0, spec.count), input(0, spec.count));
  } else {
    builder.recv(tree.parent(), chunks_of(tree.own()));
  }
  builder.end_round();
  for (const Subtree& child : tree.children_largest_first()) {
    builder.send(child.rank, chunks_of(child));
    builder.end_round();
  }

  const int32_t relative_rank = tree.own().relative_rank;
  const Subtree next = tree.subtree(neighbor(spec, relative_rank, 1));
  const int32_t previous = neighbor(spec, spec.rank, -1);
  const auto has = [](const Subtree& subtree, int32_t chunk) {
    return chunk >= subtree.relative_rank && chunk < subtree.relative_rank + subtree.span;
  };
  for (int32_t hop = 0; hop + 1 < spec.world_size; ++hop) {
    const int32_t outgoing = neighbor(spec, relative_rank, -hop);
    const int32_t incoming = neighbor(spec, relative_rank, -hop - 1);
    if (!has(next, outgoing)) builder.send(next.rank, chunks.in(BufferRole::kOutput, outgoing));
    if (!has(tree.own(), incoming)) builder.recv(previous, chunks.in(BufferRole::kOutput, incoming));
    builder.end_round();
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
