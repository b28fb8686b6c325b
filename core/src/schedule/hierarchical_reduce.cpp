// SPDX-License-Identifier: Apache-2.0
//
// Barrier, broadcast, reduce and all_reduce by topology: inside each unit, then among the owners of each share by the
// levels that remain, then inside again.
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/collectives.hpp"
#include "schedule/hierarchy.hpp"

namespace backplane::core {

namespace {

using Ranks = std::vector<int32_t>;

constexpr size_t kNobody = SIZE_MAX;

Ranks all_ranks_of(const CollectiveSpec& spec) {
  Ranks ranks(static_cast<size_t>(spec.world_size));
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int32_t>(i);
  return ranks;
}

// The shares of a region among the first ranks of every unit.
struct Shares {
  Shares(const CollectiveSpec& spec, uint64_t elements, const Units& units)
      : count(static_cast<size_t>(share_count(spec, elements, units))),
        blocks(Blocks::balanced(elements, static_cast<int32_t>(count))) {}
  Region of(const Region& whole, size_t share) const {
    const auto block = static_cast<int32_t>(share);
    return part_of(whole, blocks.offset(block), blocks.count(block));
  }

  size_t count;
  Blocks blocks;
};

// Reduces share s of the inputs of a unit into share s of `result` of the member at place s. Uses scratch memory from
// `scratch_at` on.
void reduce_inside(Builder& builder, const CollectiveSpec& spec, const Units& units, const Shares& shares,
                   const Region& in, const Region& result, uint64_t scratch_at) {
  const Ranks& ranks = units.own();
  if (shares.count == 1) {
    return append_flat(builder, spec, BP_REDUCE, ranks, 0, in.count, {in, result, scratch_at}, false);
  }
  std::vector<uint64_t> counts(ranks.size()), displs(ranks.size());
  for (size_t place = 0; place < shares.count; ++place) {
    const Region share = shares.of({}, place);
    counts[place] = share.count;
    displs[place] = share.offset;
  }
  CollectiveSpec part;
  part.kind = BP_REDUCE_SCATTERV;
  part.rank = static_cast<int32_t>(units.place);
  part.world_size = static_cast<int32_t>(ranks.size());
  part.element_size = spec.element_size;
  part.in_counts = counts.data();
  part.in_displs = displs.data();
  const Region own = units.place < shares.count ? shares.of(result, units.place) : result;
  builder.append(make_schedule(Algorithm::kPairwise, part), ranks, {in, own, scratch_at}, false);
}

// Gives every share of `data` to all members of the unit except the one at place `complete`, which has them.
void share_inside(Builder& builder, const CollectiveSpec& spec, const Units& units, const Shares& shares,
                  const Region& data, uint64_t scratch_at, size_t complete) {
  const Ranks& ranks = units.own();
  if (shares.count == 1) {
    return append_flat(builder, spec, BP_BROADCAST, ranks, 0, data.count, {data, data, scratch_at}, false);
  }
  builder.end_round();
  for (size_t distance = 1; distance < ranks.size(); ++distance) {
    const size_t to = (units.place + distance) % ranks.size();
    const size_t from = (units.place + ranks.size() - distance) % ranks.size();
    if (units.place < shares.count && to != complete) builder.send(ranks[to], shares.of(data, units.place));
    if (from < shares.count && units.place != complete) builder.recv(ranks[from], shares.of(data, from));
  }
  builder.end_round();
}

void all_reduce(Builder& builder, const CollectiveSpec& spec, size_t level, const Ranks& ranks, const Region& in,
                const Region& out, uint64_t scratch_at) {
  const auto units = next_units(spec, ranks, -1, &level);
  if (!units) return append_flat(builder, spec, BP_ALL_REDUCE, ranks, 0, in.count, {in, out, scratch_at}, true);
  const Shares shares(spec, in.count, *units);
  reduce_inside(builder, spec, *units, shares, in, out, scratch_at);
  if (units->place < shares.count) {
    const Region own = shares.of(out, units->place);
    all_reduce(builder, spec, level, units->across(units->place), own, own, scratch_at);
  }
  share_inside(builder, spec, *units, shares, out, scratch_at, kNobody);
}

// Only the root has an output. The others keep partial results in scratch memory.
void reduce(Builder& builder, const CollectiveSpec& spec, size_t level, const Ranks& ranks, int32_t root,
            const Region& in, const Region& out, uint64_t scratch_at) {
  const auto units = next_units(spec, ranks, root, &level);
  if (!units) {
    const auto at = static_cast<size_t>(index_in(ranks, root));
    return append_flat(builder, spec, BP_REDUCE, ranks, at, in.count, {in, out, scratch_at}, true);
  }
  const bool is_root = spec.rank == root;
  const Shares shares(spec, in.count, *units);
  const Region partial = is_root ? out : scratch(scratch_at, in.count);
  if (!is_root) scratch_at += in.count;
  reduce_inside(builder, spec, *units, shares, in, partial, scratch_at);
  const Ranks& with_root = units->members[units->root_unit];
  if (units->place < shares.count) {
    const Region own = shares.of(partial, units->place);
    reduce(builder, spec, level, units->across(units->place), with_root[units->place], own, own, scratch_at);
  }
  if (units->unit != units->root_unit) return;
  builder.end_round();
  if (!is_root && units->place < shares.count) builder.send(root, shares.of(partial, units->place));
  for (size_t place = 1; is_root && place < shares.count; ++place) {
    builder.recv(with_root[place], shares.of(out, place));
  }
  builder.end_round();
}

// The data of the root is in `data` already.
void broadcast(Builder& builder, const CollectiveSpec& spec, size_t level, const Ranks& ranks, int32_t root,
               const Region& data, uint64_t scratch_at) {
  const auto units = next_units(spec, ranks, root, &level);
  if (!units) {
    const auto at = static_cast<size_t>(index_in(ranks, root));
    return append_flat(builder, spec, BP_BROADCAST, ranks, at, data.count, {data, data, scratch_at}, false);
  }
  const Shares shares(spec, data.count, *units);
  const Ranks& with_root = units->members[units->root_unit];
  const bool is_near = units->unit == units->root_unit;
  builder.end_round();
  for (size_t place = 1; spec.rank == root && place < shares.count; ++place) {
    builder.send(with_root[place], shares.of(data, place));
  }
  if (is_near && spec.rank != root && units->place < shares.count) {
    builder.recv(root, shares.of(data, units->place));
  }
  builder.end_round();
  if (units->place < shares.count) {
    broadcast(builder, spec, level, units->across(units->place), with_root[units->place], shares.of(data, units->place),
              scratch_at);
  }
  share_inside(builder, spec, *units, shares, data, scratch_at, is_near ? 0 : kNobody);
}

// The first rank of each unit hears of all others in it, then of all other units, and then lets the others go.
void barrier(Builder& builder, const CollectiveSpec& spec, size_t level, const Ranks& ranks) {
  const auto units = next_units(spec, ranks, -1, &level);
  if (!units) return append_flat(builder, spec, BP_BARRIER, ranks, 0, 0, {}, false);
  CollectiveSpec inside;
  inside.rank = static_cast<int32_t>(units->place);
  inside.world_size = static_cast<int32_t>(units->own().size());
  const BinomialTree tree(inside);
  const auto rank_of = [&units](int32_t place) { return units->own()[static_cast<size_t>(place)]; };
  builder.end_round();
  for (const Subtree& child : tree.children()) builder.signal_from(rank_of(child.rank));
  builder.end_round();
  if (tree.is_root()) {
    barrier(builder, spec, level, units->across(0));
  } else {
    builder.signal_to(rank_of(tree.parent()));
    builder.end_round();
    builder.signal_from(rank_of(tree.parent()));
  }
  builder.end_round();
  for (const Subtree& child : tree.children_largest_first()) builder.signal_to(rank_of(child.rank));
  builder.end_round();
}

}  // namespace

Schedule hierarchical_all_reduce(const CollectiveSpec& spec) {
  Builder builder;
  all_reduce(builder, spec, 0, all_ranks_of(spec), input(0, spec.count), output(0, spec.count), 0);
  return std::move(builder).finish();
}

Schedule hierarchical_reduce(const CollectiveSpec& spec) {
  Builder builder;
  reduce(builder, spec, 0, all_ranks_of(spec), spec.root, input(0, spec.count), output(0, spec.count), 0);
  return std::move(builder).finish();
}

Schedule hierarchical_broadcast(const CollectiveSpec& spec) {
  Builder builder;
  if (spec.rank == spec.root) builder.copy(output(0, spec.count), input(0, spec.count));
  builder.end_round();
  broadcast(builder, spec, 0, all_ranks_of(spec), spec.root, output(0, spec.count), 0);
  return std::move(builder).finish();
}

Schedule hierarchical_barrier(const CollectiveSpec& spec) {
  Builder builder;
  barrier(builder, spec, 0, all_ranks_of(spec));
  return std::move(builder).finish();
}

}  // namespace backplane::core
