// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

namespace {

// The blocks of a subtree as one region: of the input or, for the subtree that wraps around the last rank, of scratch,
// where they are copied together.
Region blocks_at_root(Builder& builder, const CollectiveSpec& spec, const Subtree& child) {
  const uint64_t count = spec.count;
  const auto first = static_cast<uint64_t>(child.rank);
  const auto span = static_cast<uint64_t>(child.span);
  const uint64_t before_wrap = std::min(span, static_cast<uint64_t>(spec.world_size) - first);
  if (before_wrap == span) return input(first * count, span * count);
  const uint64_t wrapped = span - before_wrap;
  builder.copy(scratch(0, before_wrap * count), input(first * count, before_wrap * count));
  builder.copy(scratch(before_wrap * count, wrapped * count), input(0, wrapped * count));
  builder.end_round();
  return scratch(0, span * count);
}

}  // namespace

// Thakur, Rabenseifner, Gropp 2005, section 4.2 (the first half of the long broadcast).
Schedule binomial_scatter(const CollectiveSpec& spec) {
  const BinomialTree tree(spec);
  const uint64_t count = spec.count;
  Builder builder;
  if (!tree.is_root() && tree.children().empty()) {
    builder.recv(tree.parent(), output(0, count));
    return std::move(builder).finish();
  }
  if (!tree.is_root()) builder.recv(tree.parent(), scratch(0, static_cast<uint64_t>(tree.own().span) * count));
  builder.end_round();
  for (const Subtree& child : tree.children_largest_first()) {
    const auto below = static_cast<uint64_t>(child.relative_rank - tree.own().relative_rank);
    builder.send(child.rank, tree.is_root() ? blocks_at_root(builder, spec, child)
                                            : scratch(below * count, static_cast<uint64_t>(child.span) * count));
    builder.end_round();
  }
  builder.copy(output(0, count),
               tree.is_root() ? input(static_cast<uint64_t>(spec.rank) * count, count) : scratch(0, count));
  return std::move(builder).finish();
}

Schedule linear_scatter(const CollectiveSpec& spec) {
  const bool varying = spec.kind == BP_SCATTERV;
  Builder builder;
  if (spec.rank != spec.root) {
    builder.recv(spec.root, output(0, varying ? spec.own_count : spec.count));
    return std::move(builder).finish();
  }
  const Blocks blocks = varying ? Blocks::varying(spec.in_counts, spec.in_displs) : Blocks::equal(spec.count);
  for (int32_t distance = 1; distance < spec.world_size; ++distance) {
    const int32_t peer = neighbor(spec, spec.rank, distance);
    builder.send(peer, blocks.in(BufferRole::kInput, peer));
  }
  builder.copy(output(0, blocks.count(spec.rank)), blocks.in(BufferRole::kInput, spec.rank));
  return std::move(builder).finish();
}

}  // namespace backplane::core
