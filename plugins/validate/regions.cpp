// SPDX-License-Identifier: Apache-2.0
#include "regions.hpp"

#include <algorithm>
#include <utility>

namespace backplane::validate {
namespace {

std::vector<Region> regions_of(const bp_buffer& buffer, uint64_t element, const uint64_t* counts,
                               const uint64_t* displs, int32_t world_size) {
  std::vector<Region> result;
  if (buffer.count == 0 || buffer.memory != BP_HOST) return result;
  const auto data = reinterpret_cast<uintptr_t>(buffer.data);
  if (counts == nullptr || displs == nullptr) {
    result.push_back({data, data + buffer.count * element});
    return result;
  }
  for (int32_t rank = 0; rank < world_size; ++rank) {
    if (counts[rank] == 0) continue;
    const uintptr_t begin = data + displs[rank] * element;
    result.push_back({begin, begin + counts[rank] * element});
  }
  return result;
}

// The parts of `from` that are not in `without`.
std::vector<Region> subtract(std::vector<Region> from, const std::vector<Region>& without) {
  for (const Region& hole : without) {
    std::vector<Region> rest;
    for (const Region& region : from) {
      if (hole.end <= region.begin || region.end <= hole.begin) {
        rest.push_back(region);
        continue;
      }
      if (region.begin < hole.begin) rest.push_back({region.begin, hole.begin});
      if (hole.end < region.end) rest.push_back({hole.end, region.end});
    }
    from = std::move(rest);
  }
  return from;
}

}  // namespace

Footprint::Footprint(const bp_op& op, int32_t world_size) {
  if (op.kind == BP_BARRIER) return;
  const uint64_t element = bp_dtype_size(op.dtype);
  const bool root_of_broadcast = op.kind == BP_BROADCAST && op.input.count > 0;
  if (!root_of_broadcast) writes = regions_of(op.output, element, op.out_counts, op.out_displs, world_size);
  reads = subtract(regions_of(op.input, element, op.in_counts, op.in_displs, world_size), writes);
}

std::string BusyRegions::take(uint64_t id, const Footprint& footprint, const std::string& name, bool force) {
  const std::lock_guard lock(mutex_);
  std::string problem;
  for (const Region& region : footprint.writes) {
    if (problem.empty()) problem = conflict_text(region, true);
  }
  for (const Region& region : footprint.reads) {
    if (problem.empty()) problem = conflict_text(region, false);
  }
  if (!problem.empty() && !force) return problem;
  Owner& owner = owners_[id];
  owner.name = name;
  for (const bool writes : {true, false}) {
    for (const Region& region : writes ? footprint.writes : footprint.reads) {
      uses_.emplace(region.begin, Use{region.end, writes, id});
      owner.begins.push_back(region.begin);
      longest_ = std::max(longest_, region.end - region.begin);
    }
  }
  return problem;
}

void BusyRegions::release(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto owner = owners_.find(id);
  if (owner == owners_.end()) return;
  for (const uintptr_t begin : owner->second.begins) {
    auto [use, end] = uses_.equal_range(begin);
    while (use != end && use->second.id != id) ++use;
    if (use != end) uses_.erase(use);
  }
  owners_.erase(owner);
  if (uses_.empty()) longest_ = 0;
}

const BusyRegions::Use* BusyRegions::conflict(const Region& region, bool writes) const {
  const uintptr_t first = region.begin > longest_ ? region.begin - longest_ : 0;
  for (auto use = uses_.lower_bound(first); use != uses_.end() && use->first < region.end; ++use) {
    if (use->second.end > region.begin && (writes || use->second.writes)) return &use->second;
  }
  return nullptr;
}

std::string BusyRegions::conflict_text(const Region& region, bool writes) const {
  const Use* use = conflict(region, writes);
  if (use == nullptr) return {};
  return std::string("the ") + (writes ? "output" : "input") + " buffer is busy: " + owners_.at(use->id).name +
         (use->writes ? " still writes to it" : " still reads from it") + "; wait for that operation first";
}

}  // namespace backplane::validate
