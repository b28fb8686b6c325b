// SPDX-License-Identifier: Apache-2.0
//
// All_gather, reduce_scatter and all_to_all by topology.
#include <algorithm>
#include <utility>

#include "schedule/collectives.hpp"
#include "schedule/hierarchy.hpp"

namespace backplane::core {

namespace {

bool is_varying(const CollectiveSpec& spec) { return spec.kind == BP_ALL_GATHERV || spec.kind == BP_REDUCE_SCATTERV; }

// Whether blocks are copied together. Ranks do not choose by the sizes of blocks that vary.
bool packs(const CollectiveSpec& spec) { return !is_varying(spec) && spec.count * spec.element_size < kLeastUnpacked; }

BlockShares shares_of(const CollectiveSpec& spec, const Units& units) {
  const uint64_t all = spec.count * static_cast<uint64_t>(spec.world_size);
  const int32_t shares = packs(spec) ? share_count(spec, all, units) : static_cast<int32_t>(units.smallest());
  return {units, shares};
}

// A flat collective of `kind` (all_gather or reduce_scatter) among `ranks` with blocks of these sizes, one after the
// other in the region that `at` gives to the larger buffer.
void append_blocks(Builder& builder, const CollectiveSpec& spec, uint32_t kind, const std::vector<int32_t>& ranks,
                   const std::vector<uint64_t>& counts, const Placement& at) {
  if (std::equal(counts.begin() + 1, counts.end(), counts.begin())) {
    return append_flat(builder, spec, kind, ranks, 0, counts.front(), at, true);
  }
  std::vector<uint64_t> displs(counts.size());
  for (size_t i = 1; i < counts.size(); ++i) displs[i] = displs[i - 1] + counts[i - 1];
  CollectiveSpec part;
  part.kind = kind == BP_ALL_GATHER ? BP_ALL_GATHERV : BP_REDUCE_SCATTERV;
  part.rank = index_in(ranks, spec.rank);
  part.world_size = static_cast<int32_t>(ranks.size());
  part.element_size = spec.element_size;
  (kind == BP_ALL_GATHER ? part.out_counts : part.in_counts) = counts.data();
  (kind == BP_ALL_GATHER ? part.out_displs : part.in_displs) = displs.data();
  builder.append(flat_schedule(part), ranks, at, true);
}

// One rank's view of its unit: the places at a distance, and whether they own a share.
struct Neighbor {
  Neighbor(const BlockShares& shares, size_t at)
      : rank(shares.units().own()[at]), share(shares.share_at(at)), owns(shares.owns(at)) {}
  int32_t rank;
  size_t share;
  bool owns;
};
Neighbor after(const BlockShares& shares, size_t distance) {
  return {shares, (shares.units().place + distance) % shares.units().own().size()};
}
Neighbor before(const BlockShares& shares, size_t distance) {
  const size_t size = shares.units().own().size();
  return {shares, (shares.units().place + size - distance) % size};
}

void send_all(Builder& builder, int32_t to, const std::vector<Region>& regions) {
  for (const Region& each : regions) builder.send(to, each);
}
void receive_all(Builder& builder, int32_t from, const std::vector<Region>& regions) {
  for (const Region& each : regions) builder.recv(from, each);
}

Schedule packed_all_gather(const CollectiveSpec& spec, const BlockShares& shares) {
  const Units& units = shares.units();
  const size_t share = shares.share_at(units.place);
  const PackedBlocks packed(shares, spec.count);
  const bool owns = shares.owns(units.place);
  const std::vector<int32_t> near = shares.ranks(units.unit, share);
  Builder builder;
  builder.copy(packed.of_rank(spec.rank), input(0, spec.count));
  builder.end_round();
  if (!owns) builder.send(near.front(), packed.of_rank(spec.rank));
  for (size_t i = 1; owns && i < near.size(); ++i) builder.recv(near[i], packed.of_rank(near[i]));
  if (owns) {
    std::vector<uint64_t> counts;
    for (size_t unit = 0; unit < units.size(); ++unit) counts.push_back(packed.unit(unit, share).count);
    append_blocks(builder, spec, BP_ALL_GATHER, shares.owners(share), counts,
                  {packed.unit(units.unit, share), packed.share(share), packed.total()});
  }
  if (shares.shares() == 1) {
    const Region all = packed.share(0);
    append_flat(builder, spec, BP_BROADCAST, units.own(), 0, all.count, {all, all, packed.total()}, false);
  } else {
    builder.end_round();
    for (size_t distance = 1; distance < units.own().size(); ++distance) {
      const Neighbor from = before(shares, distance);
      if (owns) builder.send(after(shares, distance).rank, packed.share(share));
      if (from.owns) builder.recv(from.rank, packed.share(from.share));
    }
    builder.end_round();
  }
  packed.unpack(builder, BufferRole::kOutput);
  return std::move(builder).finish();
}

Schedule unpacked_all_gather(const CollectiveSpec& spec, const BlockShares& shares, const Blocks& blocks) {
  const Units& units = shares.units();
  const size_t share = shares.share_at(units.place);
  const bool owns = shares.owns(units.place);
  const std::vector<int32_t> near = shares.ranks(units.unit, share);
  const auto runs = [&](size_t unit, size_t of, int32_t except) {
    return runs_of(shares.ranks(unit, of), blocks, BufferRole::kOutput, except);
  };
  Builder builder;
  builder.copy(blocks.in(BufferRole::kOutput, spec.rank), input(0, blocks.count(spec.rank)));
  builder.end_round();
  if (!owns) builder.send(near.front(), blocks.in(BufferRole::kOutput, spec.rank));
  for (size_t i = 1; owns && i < near.size(); ++i) builder.recv(near[i], blocks.in(BufferRole::kOutput, near[i]));
  builder.end_round();
  const size_t size = units.size();
  for (size_t hop = 0; owns && hop + 1 < size; ++hop) {  // a ring of the owners of this share
    send_all(builder, shares.owner((units.unit + 1) % size, share), runs((units.unit + size - hop) % size, share, -1));
    receive_all(builder, shares.owner((units.unit + size - 1) % size, share),
                runs((units.unit + 2 * size - hop - 1) % size, share, -1));
    builder.end_round();
  }
  for (size_t distance = 1; distance < units.own().size(); ++distance) {
    const Neighbor to = after(shares, distance);
    const Neighbor from = before(shares, distance);
    for (size_t unit = 0; unit < size; ++unit) {
      if (owns) send_all(builder, to.rank, runs(unit, share, to.rank));
      if (from.owns) receive_all(builder, from.rank, runs(unit, from.share, spec.rank));
    }
    builder.end_round();
  }
  return std::move(builder).finish();
}

// Gives the blocks of a share, reduced, to their ranks. `result`: at the owner, all of them.
void distribute(Builder& builder, const CollectiveSpec& spec, const BlockShares& shares, const Blocks& blocks,
                const Region& result) {
  const Units& units = shares.units();
  const std::vector<int32_t> near = shares.ranks(units.unit, shares.share_at(units.place));
  builder.end_round();
  if (!shares.owns(units.place)) {
    builder.recv(near.front(), output(0, blocks.count(spec.rank)));
    return;
  }
  if (near.size() == 1) return;  // the result is in the output
  uint64_t at = blocks.count(spec.rank);
  for (size_t i = 1; i < near.size(); ++i) {
    builder.send(near[i], part_of(result, at, blocks.count(near[i])));
    at += blocks.count(near[i]);
  }
  builder.copy(output(0, blocks.count(spec.rank)), part_of(result, 0, blocks.count(spec.rank)));
}

// Where the owner of a share has the blocks of its unit after they have been exchanged: the output if it has only its
// own, otherwise scratch memory from `scratch_at` on.
Region result_of(const BlockShares& shares, const Blocks& blocks, uint64_t scratch_at) {
  const Units& units = shares.units();
  const std::vector<int32_t> near = shares.ranks(units.unit, shares.share_at(units.place));
  const uint64_t count = elements_of(near, blocks);
  return near.size() == 1 ? output(0, count) : scratch(scratch_at, count);
}

// Adds the exchange of the reduced blocks of a share, which are in `sum` by unit.
void reduce_between(Builder& builder, const CollectiveSpec& spec, const BlockShares& shares, const Blocks& blocks,
                    const Region& sum, const Region& result, uint64_t scratch_at) {
  const size_t share = shares.share_at(shares.units().place);
  std::vector<uint64_t> counts;
  for (size_t unit = 0; unit < shares.units().size(); ++unit) {
    counts.push_back(elements_of(shares.ranks(unit, share), blocks));
  }
  append_blocks(builder, spec, BP_REDUCE_SCATTER, shares.owners(share), counts, {sum, result, scratch_at});
}

Schedule packed_reduce_scatter(const CollectiveSpec& spec, const BlockShares& shares) {
  const Units& units = shares.units();
  const size_t share = shares.share_at(units.place);
  const Blocks blocks = Blocks::equal(spec.count);
  const PackedBlocks packed(shares, spec.count);
  const Region sum = packed.share(share);
  const bool owns = shares.owns(units.place);
  uint64_t scratch_at = packed.total();
  Builder builder;
  packed.pack(builder, BufferRole::kInput);
  builder.end_round();
  if (shares.shares() == 1) {
    append_flat(builder, spec, BP_REDUCE, units.own(), 0, sum.count, {sum, sum, scratch_at}, false);
  } else {
    const Region arrived = scratch(scratch_at, sum.count);
    for (size_t distance = 1; distance < units.own().size(); ++distance) {
      const Neighbor to = after(shares, distance);
      if (to.owns) builder.send(to.rank, packed.share(to.share));
      if (owns) {
        builder.recv(before(shares, distance).rank, arrived);
        builder.reduce(sum, arrived, Order::kTargetFirst);
      }
      builder.end_round();
    }
  }
  const Region result = result_of(shares, blocks, scratch_at);
  if (owns) reduce_between(builder, spec, shares, blocks, sum, result, scratch_at + result.count);
  distribute(builder, spec, shares, blocks, result);
  return std::move(builder).finish();
}

Schedule unpacked_reduce_scatter(const CollectiveSpec& spec, const BlockShares& shares, const Blocks& blocks) {
  const Units& units = shares.units();
  const size_t share = shares.share_at(units.place);
  const bool owns = shares.owns(units.place);
  const auto runs = [&](size_t unit, size_t of) { return runs_of(shares.ranks(unit, of), blocks, BufferRole::kInput); };
  // In scratch memory: the sums of the share, then two pieces that arrive in turn.
  std::vector<uint64_t> begins = {0};
  uint64_t largest = 0;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const uint64_t count = elements_of(shares.ranks(unit, share), blocks);
    begins.push_back(begins.back() + count);
    largest = std::max(largest, count);
  }
  const uint64_t total = begins.back();
  size_t arrivals = 0;
  Builder builder;
  for (size_t unit = 0; owns && units.own().size() == 1 && unit < units.size(); ++unit) {
    uint64_t at = begins[unit];
    for (const Region& run : runs(unit, share)) {
      builder.copy(scratch(at, run.count), run);
      at += run.count;
    }
  }
  builder.end_round();
  for (size_t distance = 1; distance < units.own().size(); ++distance) {
    const Neighbor to = after(shares, distance);
    const Neighbor from = before(shares, distance);
    for (size_t unit = 0; unit < units.size(); ++unit) {
      if (to.owns) send_all(builder, to.rank, runs(unit, to.share));
      if (!owns) {
        builder.end_round();
        continue;
      }
      // The first to arrive is received into the sum, to which this rank adds its input.
      const uint64_t begin = distance == 1 ? begins[unit] : total + largest * (arrivals++ % 2);
      uint64_t at = begin;
      for (const Region& run : runs(unit, share)) {
        builder.recv(from.rank, scratch(at, run.count));
        at += run.count;
      }
      at = begin;
      for (const Region& run : runs(unit, share)) {
        if (distance == 1) builder.reduce(scratch(at, run.count), run, Order::kTargetFirst);
        at += run.count;
      }
      if (distance > 1)
        builder.reduce(scratch(begins[unit], at - begin), scratch(begin, at - begin), Order::kTargetFirst);
      builder.end_round();
    }
  }
  const uint64_t scratch_at = total + 2 * largest;
  const Region result = result_of(shares, blocks, scratch_at);
  if (owns) reduce_between(builder, spec, shares, blocks, scratch(0, total), result, scratch_at + result.count);
  distribute(builder, spec, shares, blocks, result);
  return std::move(builder).finish();
}

}  // namespace

Schedule hierarchical_all_gather(const CollectiveSpec& spec) {
  const auto units = outermost_units(spec, -1);
  if (!units) return flat_schedule(spec);
  const BlockShares shares = shares_of(spec, *units);
  if (packs(spec)) return packed_all_gather(spec, shares);
  const Blocks blocks =
      is_varying(spec) ? Blocks::varying(spec.out_counts, spec.out_displs) : Blocks::equal(spec.count);
  return unpacked_all_gather(spec, shares, blocks);
}

Schedule hierarchical_reduce_scatter(const CollectiveSpec& spec) {
  const auto units = outermost_units(spec, -1);
  if (!units) return flat_schedule(spec);
  const BlockShares shares = shares_of(spec, *units);
  if (packs(spec)) return packed_reduce_scatter(spec, shares);
  const Blocks blocks = is_varying(spec) ? Blocks::varying(spec.in_counts, spec.in_displs) : Blocks::equal(spec.count);
  return unpacked_reduce_scatter(spec, shares, blocks);
}

}  // namespace backplane::core
