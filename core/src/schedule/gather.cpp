// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

namespace {

// A subtree's blocks arrive in the order of places. Those are ranks in order, except in the one subtree that wraps
// around the last rank: that one is received into scratch memory and copied in two parts.
void receive_at_root(Builder& builder, const Problem& problem, const Subtree& child) {
  const uint64_t count = problem.count;
  const auto first = static_cast<uint64_t>(child.rank);
  const auto span = static_cast<uint64_t>(child.span);
  const uint64_t before_wrap = std::min(span, static_cast<uint64_t>(problem.world_size) - first);
  if (before_wrap == span) {
    builder.recv(child.rank, output(first * count, span * count));
  } else {
    const uint64_t wrapped = span - before_wrap;
    builder.recv(child.rank, scratch(0, span * count));
    builder.copy(output(first * count, before_wrap * count), scratch(0, before_wrap * count));
    builder.copy(output(0, wrapped * count), scratch(before_wrap * count, wrapped * count));
  }
}

}  // namespace

// Thakur, Rabenseifner, Gropp 2005, section 4.3 (the scatter, upside down).
Schedule binomial_gather(const Problem& problem) {
  const BinomialTree tree(problem);
  const uint64_t count = problem.count;
  Builder builder;
  if (tree.is_root()) {
    builder.copy(output(static_cast<uint64_t>(problem.rank) * count, count), input(0, count));
    builder.end_round();
    for (const Subtree& child : tree.children()) {
      receive_at_root(builder, problem, child);
      builder.end_round();
    }
    return std::move(builder).finish();
  }
  if (tree.children().empty()) {
    builder.send(tree.parent(), input(0, count));
    return std::move(builder).finish();
  }
  builder.copy(scratch(0, count), input(0, count));
  builder.end_round();
  for (const Subtree& child : tree.children()) {
    const auto above = static_cast<uint64_t>(child.place - tree.own().place);
    builder.recv(child.rank, scratch(above * count, static_cast<uint64_t>(child.span) * count));
    builder.end_round();
  }
  builder.send(tree.parent(), scratch(0, static_cast<uint64_t>(tree.own().span) * count));
  return std::move(builder).finish();
}

Schedule linear_gather(const Problem& problem) {
  const bool varying = problem.kind == BP_GATHERV;
  Builder builder;
  if (problem.rank != problem.root) {
    builder.send(problem.root, input(0, varying ? problem.own_count : problem.count));
    return std::move(builder).finish();
  }
  const Blocks blocks =
      varying ? Blocks::varying(problem.out_counts, problem.out_displs) : Blocks::equal(problem.count);
  for (int32_t distance = 1; distance < problem.world_size; ++distance) {
    const int32_t peer = around(problem, problem.rank, distance);
    builder.recv(peer, blocks.in(Where::kOutput, peer));
  }
  builder.copy(blocks.in(Where::kOutput, problem.rank), input(0, blocks.count(problem.rank)));
  return std::move(builder).finish();
}

}  // namespace backplane::core
