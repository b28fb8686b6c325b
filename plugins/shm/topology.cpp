// SPDX-License-Identifier: Apache-2.0
#include "topology.hpp"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#ifdef BACKPLANE_SHM_HWLOC
#include <hwloc.h>
#endif

namespace backplane::shm {
namespace {

constexpr int kDistances = 4;

int distance(const Locality& one, const Locality& other) {
  if (one.cache != 0 && one.cache == other.cache) return 0;
  if (one.node != 0 && one.node == other.node) return 1;
  if (one.package != 0 && one.package == other.package) return 2;
  return kDistances - 1;
}

size_t count(const std::vector<Locality>& localities, uint32_t Locality::*part) {
  std::set<uint32_t> different;
  for (const Locality& locality : localities) different.insert(locality.*part);
  return different.contains(0) ? 0 : different.size();
}

#ifdef BACKPLANE_SHM_HWLOC

using Loaded = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

// Loads only packages, last-level caches, memory nodes and processors, to save time. Includes disallowed processors, so
// that ranks in different cpusets number them alike.
Loaded load(const char* description) {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) return {nullptr, hwloc_topology_destroy};
  Loaded topology(made, hwloc_topology_destroy);
  hwloc_topology_set_all_types_filter(made, HWLOC_TYPE_FILTER_KEEP_NONE);
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE}) {
    hwloc_topology_set_type_filter(made, type, HWLOC_TYPE_FILTER_KEEP_ALL);
  }
  hwloc_topology_set_type_filter(made, HWLOC_OBJ_GROUP,
                                 HWLOC_TYPE_FILTER_KEEP_STRUCTURE);  // several nodes per package
  hwloc_topology_set_flags(
      made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);  // of this thread
  if (description != nullptr && hwloc_topology_set_synthetic(made, description) != 0) topology.reset();
  if (topology && hwloc_topology_load(made) != 0) topology.reset();
  return topology;
}

uint32_t above(hwloc_topology_t topology, hwloc_obj_t processor, hwloc_obj_type_t type) {
  const hwloc_obj_t found = hwloc_get_ancestor_obj_by_type(topology, type, processor);
  return found == nullptr ? 0 : found->logical_index + 1;
}

#endif

}  // namespace

#ifdef BACKPLANE_SHM_HWLOC

Topology::Topology(const char* description) {
  const Loaded topology = load(description);
  if (!topology) return;
  hwloc_obj_t processor = nullptr;
  while ((processor = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_PU, processor)) != nullptr) {
    if (processor->os_index >= std::tuple_size_v<Processors> * 64) continue;
    if (processor->os_index >= localities_.size()) localities_.resize(processor->os_index + 1);
    Locality& locality = localities_[processor->os_index];
    locality.package = above(topology.get(), processor, HWLOC_OBJ_PACKAGE);
    locality.node =
        processor->nodeset == nullptr ? 0 : static_cast<uint32_t>(hwloc_bitmap_first(processor->nodeset) + 1);
    locality.cache = above(topology.get(), processor, HWLOC_OBJ_L3CACHE);
    if (locality.cache == 0) locality.cache = above(topology.get(), processor, HWLOC_OBJ_L2CACHE);
    const hwloc_obj_t cache = hwloc_get_ancestor_obj_by_type(topology.get(), HWLOC_OBJ_L2CACHE, processor);
    if (cache != nullptr) second_level_cache_ = std::max<uint64_t>(second_level_cache_, cache->attr->cache.size);
  }
}

#else

Topology::Topology(const char* description)
    : second_level_cache_(description == nullptr ? static_cast<uint64_t>(std::max(0L, ::sysconf(_SC_LEVEL2_CACHE_SIZE)))
                                                 : 0) {}

#endif

uint64_t staging_for(bool is_amd, uint64_t second_level_cache) {
  constexpr uint64_t kUsual = UINT64_C(1) << 20;  // of AMD's servers
  if (!is_amd) return 0;
  return 2 * (second_level_cache == 0 ? kUsual : second_level_cache);
}

bool is_amd_host() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

const Topology& Topology::of_host() {
  static const Topology found(nullptr);
  return found;
}

Locality Topology::locality_of(const Processors& processors) const {
  Locality result;
  bool is_first = true;
  const auto join = [&is_first](uint32_t& all, uint32_t one) { all = is_first || all == one ? one : 0; };
  for (size_t i = 0; i < processors.size() * 64; ++i) {
    if ((processors[i / 64] >> (i % 64) & 1) == 0) continue;
    if (i >= localities_.size()) return {};
    join(result.package, localities_[i].package);
    join(result.node, localities_[i].node);
    join(result.cache, localities_[i].cache);
    is_first = false;
  }
  return result;
}

std::vector<int32_t> reading_order(int32_t rank, const std::vector<Locality>& localities) {
  const auto ranks = static_cast<int32_t>(localities.size());
  const Locality& own = localities[static_cast<size_t>(rank)];
  std::vector<int32_t> order;
  for (int near = 0; near < kDistances; ++near) {
    // Among ranks of its own locality a rank starts after itself. In other groups it starts at its index within its
    // locality.
    std::vector<int32_t> group;
    int32_t before = 0;  // ranks of its own locality that precede it
    for (int32_t other = 0; other < ranks; ++other) {
      const bool is_like = localities[static_cast<size_t>(other)] == own;
      if (is_like && other < rank) ++before;
      if (other != rank && distance(own, localities[static_cast<size_t>(other)]) == near) group.push_back(other);
    }
    if (group.empty()) continue;
    std::rotate(group.begin(), group.begin() + before % static_cast<int32_t>(group.size()), group.end());
    order.insert(order.end(), group.begin(), group.end());
  }
  return order;
}

std::string describe_spread(const std::vector<Locality>& localities) {
  const size_t nodes = count(localities, &Locality::node);
  const size_t caches = count(localities, &Locality::cache);
  const auto many = [](size_t number, const char* one, const char* several) {
    return std::to_string(number).append(number == 1 ? one : several);
  };
  std::string text = nodes == 0 ? "" : many(nodes, " memory node", " memory nodes");
  if (caches == 0) return text;
  return text.append(text.empty() ? "" : ", ").append(many(caches, " cache", " caches"));
}

}  // namespace backplane::shm
