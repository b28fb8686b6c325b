// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

namespace {

// The blocks of a subtree arrive in the order of relative ranks, which is the order of ranks except in the subtree that
// wraps around the last rank. That one is received into scratch and copied in two parts.
void receive_at_root(Builder& builder, const CollectiveSpec& spec, const Subtree& child) {
  const uint64_t count = spec.count;
  const auto first = static_cast<uint64_t>(child.rank);
  const auto span = static_cast<uint64_t>(child.span);
  const uint64_t before_wrap = std::min(span, static_cast<uint64_t>(spec.world_size) - first);
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

// Thakur, Rabenseifner, Gropp 2005, section 4.3 (the scatter, reversed).
Schedule binomial_gather(const CollectiveSpec& spec) {
  const BinomialTree tree(spec);
  const uint64_t count = spec.count;
  Builder builder;
  if (tree.is_root()) {
    builder.copy(output(static_cast<uint64_t>(spec.rank) * count, count), input(0, count));
    builder.end_round();
    for (const Subtree& child : tree.children()) {
      receive_at_root(builder, spec, child);
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
    const auto above = static_cast<uint64_t>(child.relative_rank - tree.own().relative_rank);
    builder.recv(child.rank, scratch(above * count, static_cast<uint64_t>(child.span) * count));
    builder.end_round();
  }
  builder.send(tree.parent(), scratch(0, static_cast<uint64_t>(tree.own().span) * count));
  return std::move(builder).finish();
}

Schedule linear_gather(const CollectiveSpec& spec) {
  const bool varying = spec.kind == BP_GATHERV;
  Builder builder;
  if (spec.rank != spec.root) {
    builder.send(spec.root, input(0, varying ? spec.own_count : spec.count));
    return std::move(builder).finish();
  }
  const Blocks blocks = varying ? Blocks::varying(spec.out_counts, spec.out_displs) : Blocks::equal(spec.count);
  for (int32_t distance = 1; distance < spec.world_size; ++distance) {
    const int32_t peer = neighbor(spec, spec.rank, distance);
    builder.recv(peer, blocks.in(BufferRole::kOutput, peer));
  }
  builder.copy(blocks.in(BufferRole::kOutput, spec.rank), input(0, blocks.count(spec.rank)));
  return std::move(builder).finish();
}

}  // namespace backplane::core
