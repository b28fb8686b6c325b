// SPDX-License-Identifier: Apache-2.0
#include "schedule/hierarchy.hpp"

#include <algorithm>

namespace backplane::core {

int32_t share_count(const CollectiveSpec& spec, uint64_t elements, const Units& units) {
  const uint64_t shares = elements * spec.element_size / kLeastShare;
  return static_cast<int32_t>(std::clamp<uint64_t>(shares, 1, units.smallest()));
}

CollectiveSpec flat(const CollectiveSpec& spec) {
  CollectiveSpec same = spec;
  same.topology = nullptr;
  return same;
}

Schedule flat_schedule(const CollectiveSpec& spec) {
  const CollectiveSpec same = flat(spec);
  return make_schedule(choose_algorithm(same), same);
}

int32_t index_in(const std::vector<int32_t>& ranks, int32_t rank) {
  return static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

void append_flat(Builder& builder, const CollectiveSpec& spec, uint32_t kind, const std::vector<int32_t>& ranks,
                 size_t root, uint64_t count, const Placement& at, bool completes) {
  CollectiveSpec part;
  part.kind = kind;
  part.rank = index_in(ranks, spec.rank);
  part.world_size = static_cast<int32_t>(ranks.size());
  part.root = static_cast<int32_t>(root);
  part.count = count;
  part.element_size = spec.element_size;
  builder.append(flat_schedule(part), ranks, at, completes);
}

std::vector<int32_t> BlockShares::ranks(size_t unit, size_t share) const {
  const std::vector<int32_t>& members = units_.members[unit];
  const auto at = [&](size_t index) { return members.begin() + static_cast<std::ptrdiff_t>(first_place(unit, index)); };
  return {at(share), at(share + 1)};
}

std::vector<int32_t> BlockShares::owners(size_t share) const {
  std::vector<int32_t> ranks;
  for (size_t unit = 0; unit < units_.size(); ++unit) ranks.push_back(owner(unit, share));
  return ranks;
}

size_t BlockShares::share_at(size_t place) const {
  size_t share = 0;
  while (share + 1 < shares_ && first_place(units_.unit, share + 1) <= place) ++share;
  return share;
}

std::vector<Region> runs_of(const std::vector<int32_t>& ranks, const Blocks& blocks, BufferRole buffer,
                            int32_t except) {
  std::vector<Region> runs;
  for (const int32_t rank : ranks) {
    const Region block = blocks.in(buffer, rank);
    if (block.count == 0 || rank == except) continue;
    if (!runs.empty() && runs.back().offset + runs.back().count == block.offset) {
      runs.back().count += block.count;
    } else {
      runs.push_back(block);
    }
  }
  return runs;
}

uint64_t elements_of(const std::vector<int32_t>& ranks, const Blocks& blocks) {
  uint64_t sum = 0;
  for (const int32_t rank : ranks) sum += blocks.count(rank);
  return sum;
}

PackedBlocks::PackedBlocks(const BlockShares& shares, uint64_t count) : count_(count) {
  uint64_t at = 0;
  for (size_t share = 0; share < shares.shares(); ++share) {
    begins_.emplace_back();
    sizes_.emplace_back();
    for (size_t unit = 0; unit < shares.units().size(); ++unit) {
      begins_.back().push_back(at);
      for (const int32_t rank : shares.ranks(unit, share)) {
        const auto index = static_cast<size_t>(rank);
        if (places_.size() <= index) places_.resize(index + 1);
        places_[index] = at;
        at += count;
      }
      sizes_.back().push_back(at - begins_.back().back());
    }
    ends_.push_back(at);
  }
}

void PackedBlocks::copy(Builder& builder, BufferRole other, bool pack) const {
  for (size_t first = 0; first < places_.size();) {
    size_t end = first + 1;
    while (end < places_.size() && places_[end] == places_[end - 1] + count_) ++end;
    const uint64_t count = count_ * (end - first);
    const Region in_order = {other, count_ * first, count};
    const Region here = scratch(places_[first], count);
    builder.copy(pack ? here : in_order, pack ? in_order : here);
    first = end;
  }
}

}  // namespace backplane::core
