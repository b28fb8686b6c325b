// SPDX-License-Identifier: Apache-2.0
#include "pools.hpp"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>

namespace backplane::shm {
namespace {

// The pool's number stands above the place in it.
constexpr int kPoolShift = 56;
static_assert(kMostHeaps < UINT64_C(1) << kPoolShift && kMostElders < 256);

struct Known {
  uint64_t id;
  pid_t pid;                          // children of a fork have the list, but not the memory
  int32_t global_rank;                // of the job, as the following
  std::vector<int32_t> global_ranks;  // by rank of the group
  std::weak_ptr<Heaps> heaps;
};

struct List {
  std::mutex mutex;
  std::vector<Known> groups;  // oldest first
};

List& list() {
  static List* const made = new List;  // groups may end after statics
  return *made;
}

int32_t global_rank(const sdk::Context& context) { return context.global_ranks[static_cast<size_t>(context.rank)]; }

// By rank of the new group: its place in the old one; empty if one is not in it.
std::vector<int32_t> places_in(const std::vector<int32_t>& old_group, const std::vector<int32_t>& new_group) {
  std::vector<int32_t> places;
  for (const int32_t each : new_group) {
    const auto found = std::find(old_group.begin(), old_group.end(), each);
    if (found == old_group.end()) return {};
    places.push_back(static_cast<int32_t>(found - old_group.begin()));
  }
  return places;
}

}  // namespace

std::vector<Elder> elders_of(const sdk::Context& context) {
  std::vector<Elder> found;
  const std::lock_guard lock(list().mutex);
  for (const Known& each : list().groups) {
    if (found.size() == kMostElders) break;
    if (each.pid != ::getpid() || each.global_rank != global_rank(context)) continue;
    std::vector<int32_t> owners = places_in(each.global_ranks, context.global_ranks);
    std::shared_ptr<Heaps> heaps = each.heaps.lock();
    if (!owners.empty() && heaps) found.push_back({each.id, std::move(owners), std::move(heaps)});
  }
  return found;
}

void become_elder(uint64_t id, const sdk::Context& context, const std::shared_ptr<Heaps>& heaps) {
  const std::lock_guard lock(list().mutex);
  list().groups.push_back({id, ::getpid(), global_rank(context), context.global_ranks, heaps});
}

void retire_elder(const std::shared_ptr<Heaps>& heaps) noexcept {
  const std::lock_guard lock(list().mutex);
  std::erase_if(list().groups, [&heaps](const Known& each) { return each.heaps.lock() == heaps; });
}

uint64_t Pools::place_of(const std::byte* data, uint64_t size) const {
  for (size_t pool = 0; pool < pools_.size(); ++pool) {
    const uint64_t place = pools_[pool].heaps->place_of(data, size);
    if (place != 0) return pool << kPoolShift | place;
  }
  return 0;
}

std::byte* Pools::at(int32_t rank, uint64_t place, uint64_t size, uint64_t alignment) const {
  const uint64_t pool = place >> kPoolShift;
  const uint64_t there = place & ((UINT64_C(1) << kPoolShift) - 1);
  std::byte* data = nullptr;
  if (pool < pools_.size()) {
    const Elder& elder = pools_[pool];
    const int32_t owner = pool == 0 ? rank : elder.owners[static_cast<size_t>(rank)];
    data = elder.heaps->at(owner, there, size, alignment);
  }
  if (data != nullptr) return data;
  throw sdk::Failure(BP_INVALID, "rank " + std::to_string(rank) + " names a buffer that is not in its memory", rank);
}

void Pools::take_back(uint64_t place, std::byte* begin, uint64_t size) const noexcept {
  detach(begin, size);
  pools_[place >> kPoolShift].heaps->retire();
}

}  // namespace backplane::shm
