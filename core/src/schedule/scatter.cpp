// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

namespace {

// The blocks of a subtree side by side: as they stand in the input, except for the one subtree that wraps around the
// last rank, which is put together in scratch.
Region blocks_at_root(Builder& builder, const Problem& problem, const Subtree& child) {
  const uint64_t count = problem.count;
  const auto first = static_cast<uint64_t>(child.rank);
  const auto span = static_cast<uint64_t>(child.span);
  const uint64_t before_wrap = std::min(span, static_cast<uint64_t>(problem.world_size) - first);
  if (before_wrap == span) return input(first * count, span * count);
  const uint64_t wrapped = span - before_wrap;
  builder.copy(scratch(0, before_wrap * count), input(first * count, before_wrap * count));
  builder.copy(scratch(before_wrap * count, wrapped * count), input(0, wrapped * count));
  builder.end_round();
  return scratch(0, span * count);
}

}  // namespace

// Thakur, Rabenseifner, Gropp 2005, section 4.2 (the first half of the long broadcast).
Schedule binomial_scatter(const Problem& problem) {
  const BinomialTree tree(problem);
  const uint64_t count = problem.count;
  Builder builder;
  if (!tree.is_root() && tree.children().empty()) {
    builder.recv(tree.parent(), output(0, count));
    return std::move(builder).finish();
  }
  if (!tree.is_root()) builder.recv(tree.parent(), scratch(0, static_cast<uint64_t>(tree.own().span) * count));
  builder.end_round();
  for (const Subtree& child : tree.children_largest_first()) {
    const auto below = static_cast<uint64_t>(child.place - tree.own().place);
    builder.send(child.rank, tree.is_root() ? blocks_at_root(builder, problem, child)
                                            : scratch(below * count, static_cast<uint64_t>(child.span) * count));
    builder.end_round();
  }
  builder.copy(output(0, count),
               tree.is_root() ? input(static_cast<uint64_t>(problem.rank) * count, count) : scratch(0, count));
  return std::move(builder).finish();
}

Schedule linear_scatter(const Problem& problem) {
  const bool varying = problem.kind == BP_SCATTERV;
  Builder builder;
  if (problem.rank != problem.root) {
    builder.recv(problem.root, output(0, varying ? problem.own_count : problem.count));
    return std::move(builder).finish();
  }
  const Blocks blocks = varying ? Blocks::varying(problem.in_counts, problem.in_displs) : Blocks::equal(problem.count);
  for (int32_t distance = 1; distance < problem.world_size; ++distance) {
    const int32_t peer = around(problem, problem.rank, distance);
    builder.send(peer, blocks.in(Where::kInput, peer));
  }
  builder.copy(output(0, blocks.count(problem.rank)), blocks.in(Where::kInput, problem.rank));
  return std::move(builder).finish();
}

}  // namespace backplane::core
