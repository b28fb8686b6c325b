// SPDX-License-Identifier: Apache-2.0
//
// Parts of the collectives by topology. They are made of schedules for ranks that are equally far from each other
// ("flat"): inside a unit, and among ranks of different units.
//
// A buffer is divided into *shares*, at most as many as the smallest unit has ranks. Share s of a unit belongs to one
// of its ranks, the *owner*, which exchanges it with the owners of the same share in other units. Every byte therefore
// crosses between units as rarely as if each unit were one rank, and all ranks of a unit carry an equal part. Small
// data is one share: only one rank of each unit communicates with other units, in few messages.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/schedule.hpp"
#include "schedule/topology.hpp"

namespace backplane::core {

// A share is not smaller than this, in bytes: below, the start of a message costs more than its bytes.
constexpr uint64_t kLeastShare = 16384;
// Blocks of fewer bytes are copied together before they are sent, and larger ones are sent from where they are.
constexpr uint64_t kLeastUnpacked = 8192;

// The number of shares for so many elements.
int32_t share_count(const CollectiveSpec& spec, uint64_t elements, const Units& units);

// `spec` without topology.
CollectiveSpec flat(const CollectiveSpec& spec);
// The schedule of the algorithm that choose_algorithm() takes without topology.
Schedule flat_schedule(const CollectiveSpec& spec);

// A flat collective of `count` elements among `ranks`, of which this rank is one. `root`: index in `ranks`.
void append_flat(Builder& builder, const CollectiveSpec& spec, uint32_t kind, const std::vector<int32_t>& ranks,
                 size_t root, uint64_t count, const Placement& at, bool completes);

// This rank's index in `ranks`.
int32_t index_in(const std::vector<int32_t>& ranks, int32_t rank);

// Part of a region.
inline Region part_of(const Region& whole, uint64_t offset, uint64_t count) {
  return {whole.buffer, whole.offset + offset, count};
}

// Division of the blocks of all ranks into shares: share s of a unit is the blocks of some of its members that follow
// each other, the first of which owns it.
class BlockShares {
 public:
  BlockShares(Units units, int32_t shares) : units_(std::move(units)), shares_(static_cast<size_t>(shares)) {}

  const Units& units() const { return units_; }
  size_t shares() const { return shares_; }
  size_t first_place(size_t unit, size_t share) const { return share * units_.members[unit].size() / shares_; }
  // The ranks whose blocks are the share of this unit; the owner first.
  std::vector<int32_t> ranks(size_t unit, size_t share) const;
  int32_t owner(size_t unit, size_t share) const { return units_.members[unit][first_place(unit, share)]; }
  std::vector<int32_t> owners(size_t share) const;
  // The share of the member at this place of this rank's unit, and whether the member owns it.
  size_t share_at(size_t place) const;
  bool owns(size_t place) const { return first_place(units_.unit, share_at(place)) == place; }

 private:
  Units units_;
  size_t shares_;
};

// The blocks of these ranks as regions; adjacent ones are one region. Without the block of the rank `except`.
std::vector<Region> runs_of(const std::vector<int32_t>& ranks, const Blocks& blocks, BufferRole buffer,
                            int32_t except = -1);
uint64_t elements_of(const std::vector<int32_t>& ranks, const Blocks& blocks);

// The places of equal blocks in scratch memory that has all of share 0, of its units in order, then share 1, and so on.
class PackedBlocks {
 public:
  // From the beginning of scratch memory. `count`: elements of a block.
  PackedBlocks(const BlockShares& shares, uint64_t count);
  Region share(size_t share) const { return scratch(begins_[share][0], ends_[share] - begins_[share][0]); }
  Region unit(size_t unit, size_t share) const { return scratch(begins_[share][unit], size(unit, share)); }
  uint64_t total() const { return ends_.back(); }
  // Copies all blocks between their places in rank order in `other` and those here.
  void pack(Builder& builder, BufferRole other) const { copy(builder, other, true); }
  void unpack(Builder& builder, BufferRole other) const { copy(builder, other, false); }
  Region of_rank(int32_t rank) const { return scratch(places_[static_cast<size_t>(rank)], count_); }

 private:
  uint64_t size(size_t unit, size_t share) const { return sizes_[share][unit]; }
  void copy(Builder& builder, BufferRole other, bool pack) const;

  uint64_t count_;
  std::vector<std::vector<uint64_t>> begins_, sizes_;  // by share and unit
  std::vector<uint64_t> ends_;                         // by share
  std::vector<uint64_t> places_;                       // by rank
};

}  // namespace backplane::core
