// SPDX-License-Identifier: Apache-2.0
//
// Whose memory the buffers of a group's collectives may lie in, for the other ranks to reach them there: that of the
// group itself, and of older groups that all its ranks are in, too, as those of a split are in the group that was
// split.
//
// The ranks of a new group agree on its elders: each lists in its Member the groups that it could mean, and what all of
// them list counts.
#pragma once

#include <memory>
#include <vector>

#include "backplane/sdk/process_group.hpp"
#include "heap.hpp"

namespace backplane::shm {

// An older group of this process that has all ranks of a new one.
struct Elder {
  uint64_t id = 0;               // the same on all its ranks; not 0
  std::vector<int32_t> owners;   // which of its heaps belongs to each rank of the new group
  std::shared_ptr<Heaps> heaps;  // the new group keeps them
};

// Those that a rank of a new group may name; oldest first, kMostElders at most.
std::vector<Elder> elders_of(const sdk::Context& context);
// From now on the group with this context is an elder to groups that are made later, as long as its heaps are there.
void become_elder(uint64_t id, const sdk::Context& context, const std::shared_ptr<Heaps>& heaps);
// Its group has ended, though younger ones may keep the heaps.
void retire_elder(const std::shared_ptr<Heaps>& heaps) noexcept;

class Pools {
 public:
  explicit Pools(std::shared_ptr<Heaps> own) { pools_.push_back({0, {}, std::move(own)}); }
  // In the same order on all ranks.
  void add(Elder elder) { pools_.push_back(std::move(elder)); }
  const std::shared_ptr<Heaps>& own() const { return pools_[0].heaps; }
  size_t elders() const { return pools_.size() - 1; }

  // Where in this rank's memory these bytes lie, if all of them do, as a number for the other ranks; else 0. Any
  // thread.
  uint64_t place_of(const std::byte* data, uint64_t size) const;
  // What another rank says that lies there: `place` is whatever it wrote. Throws BP_INVALID if it is not `size` bytes
  // of its memory that begin at a multiple of `alignment`; BP_RESOURCE.
  std::byte* at(int32_t rank, uint64_t place, uint64_t size, uint64_t alignment) const;
  // Whole pages of this rank's memory become this process's alone, and hold zeros: others may still write to them. No
  // group lends memory of that pool any more.
  void take_back(uint64_t place, std::byte* begin, uint64_t size) const noexcept;

 private:
  std::vector<Elder> pools_;  // first the group's own
};

}  // namespace backplane::shm
