// SPDX-License-Identifier: Apache-2.0
#include "pools.hpp"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>

namespace backplane::shm {
namespace {

// The number of the pool is stored above the location in the pool.
constexpr int kPoolShift = 56;
static_assert(kMaxHeapBytes < UINT64_C(1) << kPoolShift && kMaxOlderGroups < 256);

struct Registration {
  uint64_t id;
  pid_t pid;                          // children of a fork have the list but not the memory
  int32_t global_rank;                // in the job
  std::vector<int32_t> global_ranks;  // by rank of the group, in the job
  std::weak_ptr<Heaps> heaps;
};

struct List {
  std::mutex mutex;
  std::vector<Registration> groups;  // oldest first
};

List& list() {
  static List* const made = new List;  // never destroyed: groups may end after static objects
  return *made;
}

int32_t global_rank(const sdk::Context& context) { return context.global_ranks[static_cast<size_t>(context.rank)]; }

// The ranks of the new group in the old one; empty if one is not a member.
std::vector<int32_t> positions_in(const std::vector<int32_t>& old_group, const std::vector<int32_t>& new_group) {
  std::vector<int32_t> positions;
  for (const int32_t each : new_group) {
    const auto found = std::find(old_group.begin(), old_group.end(), each);
    if (found == old_group.end()) return {};
    positions.push_back(static_cast<int32_t>(found - old_group.begin()));
  }
  return positions;
}

}  // namespace

std::vector<OlderGroup> older_groups_of(const sdk::Context& context) {
  std::vector<OlderGroup> found;
  const std::lock_guard lock(list().mutex);
  for (const Registration& each : list().groups) {
    if (found.size() == kMaxOlderGroups) break;
    if (each.pid != ::getpid() || each.global_rank != global_rank(context)) continue;
    std::vector<int32_t> owners = positions_in(each.global_ranks, context.global_ranks);
    std::shared_ptr<Heaps> heaps = each.heaps.lock();
    if (!owners.empty() && heaps) found.push_back({each.id, std::move(owners), std::move(heaps)});
  }
  return found;
}

void register_group(uint64_t id, const sdk::Context& context, const std::shared_ptr<Heaps>& heaps) {
  const std::lock_guard lock(list().mutex);
  list().groups.push_back({id, ::getpid(), global_rank(context), context.global_ranks, heaps});
}

void unregister_group(const std::shared_ptr<Heaps>& heaps) noexcept {
  const std::lock_guard lock(list().mutex);
  std::erase_if(list().groups, [&heaps](const Registration& each) { return each.heaps.lock() == heaps; });
}

uint64_t Pools::location_of(const std::byte* data, uint64_t size) const {
  for (size_t pool = 0; pool < pools_.size(); ++pool) {
    const uint64_t location = pools_[pool].heaps->location_of(data, size);
    if (location != 0) return pool << kPoolShift | location;
  }
  return 0;
}

std::byte* Pools::at(int32_t rank, uint64_t location, uint64_t size, uint64_t alignment) const {
  const uint64_t pool = location >> kPoolShift;
  const uint64_t there = location & ((UINT64_C(1) << kPoolShift) - 1);
  std::byte* data = nullptr;
  if (pool < pools_.size()) {
    const OlderGroup& older_group = pools_[pool];
    const int32_t owner = pool == 0 ? rank : older_group.owners[static_cast<size_t>(rank)];
    data = older_group.heaps->at(owner, there, size, alignment);
  }
  if (data != nullptr) return data;
  throw sdk::Failure(BP_INVALID, "rank " + std::to_string(rank) + " announced a buffer outside its memory", rank);
}

void Pools::detach_pages(uint64_t location, std::byte* begin, uint64_t size) const noexcept {
  detach(begin, size);
  pools_[location >> kPoolShift].heaps->retire();
}

}  // namespace backplane::shm
