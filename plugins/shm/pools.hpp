// SPDX-License-Identifier: Apache-2.0
//
// Memory pools in which buffers of collectives can be accessed by the other ranks: the heaps of the group itself, and
// of older groups that contain all its ranks, such as the group that was split.
//
// The ranks of a new group agree on its older groups: each lists candidates in its Member, and those that all ranks
// list are used.
#pragma once

#include <memory>
#include <vector>

#include "backplane/sdk/process_group.hpp"
#include "heap.hpp"

namespace backplane::shm {

// An older group of this process that contains all ranks of a new one.
struct OlderGroup {
  uint64_t id = 0;               // equal on all ranks, not 0
  std::vector<int32_t> owners;   // heap numbers by rank of the new group
  std::shared_ptr<Heaps> heaps;  // kept alive by the new group
};

// The candidates of a new group: oldest first, up to kMaxOlderGroups.
std::vector<OlderGroup> older_groups_of(const sdk::Context& context);
// Makes the group with this context a candidate for later groups, as long as its heaps exist.
void register_group(uint64_t id, const sdk::Context& context, const std::shared_ptr<Heaps>& heaps);
// The group has ended. Newer groups may keep its heaps.
void unregister_group(const std::shared_ptr<Heaps>& heaps) noexcept;

class Pools {
 public:
  explicit Pools(std::shared_ptr<Heaps> own) { pools_.push_back({0, {}, std::move(own)}); }
  // In the same order on all ranks.
  void add(OlderGroup older_group) { pools_.push_back(std::move(older_group)); }
  const std::shared_ptr<Heaps>& own() const { return pools_[0].heaps; }
  size_t older_groups() const { return pools_.size() - 1; }

  // The location of these bytes in this rank's pools, for other ranks; 0 if they are not entirely in one. Any thread.
  uint64_t location_of(const std::byte* data, uint64_t size) const;
  // The address of a location published by another rank, which is untrusted. Throws BP_INVALID unless `size` bytes of
  // its memory begin there at a multiple of `alignment`; BP_RESOURCE.
  std::byte* at(int32_t rank, uint64_t location, uint64_t size, uint64_t alignment) const;
  // Makes whole pages of this rank's memory private and zero, because others may still write to them. The pool is no
  // longer used for zero copy.
  void detach_pages(uint64_t location, std::byte* begin, uint64_t size) const noexcept;

 private:
  std::vector<OlderGroup> pools_;  // the group's own first
};

}  // namespace backplane::shm
