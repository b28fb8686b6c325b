// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule.hpp"

#include <stdexcept>

#include "schedule/collectives.hpp"

namespace backplane::core {

namespace {

struct Entry {
  uint32_t kind;
  Algorithm algorithm;
  Schedule (*make)(const CollectiveSpec& spec);
};

// The default of a kind comes first.
constexpr Entry kEntries[] = {
    {BP_BARRIER, Algorithm::kDissemination, dissemination_barrier},
    {BP_BROADCAST, Algorithm::kBinomial, binomial_broadcast},
    {BP_BROADCAST, Algorithm::kRing, ring_broadcast},
    {BP_REDUCE, Algorithm::kBinomial, binomial_reduce},
    {BP_REDUCE, Algorithm::kRing, ring_reduce},
    {BP_ALL_REDUCE, Algorithm::kRecursiveDoubling, recursive_doubling_all_reduce},
    {BP_ALL_REDUCE, Algorithm::kRing, ring_all_reduce},
    {BP_GATHER, Algorithm::kBinomial, binomial_gather},
    {BP_GATHER, Algorithm::kLinear, linear_gather},
    {BP_GATHERV, Algorithm::kLinear, linear_gather},
    {BP_SCATTER, Algorithm::kBinomial, binomial_scatter},
    {BP_SCATTER, Algorithm::kLinear, linear_scatter},
    {BP_SCATTERV, Algorithm::kLinear, linear_scatter},
    {BP_ALL_GATHER, Algorithm::kBruck, bruck_all_gather},
    {BP_ALL_GATHER, Algorithm::kRing, ring_all_gather},
    {BP_ALL_GATHERV, Algorithm::kRing, ring_all_gather},
    {BP_REDUCE_SCATTER, Algorithm::kRing, ring_reduce_scatter},
    {BP_REDUCE_SCATTER, Algorithm::kPairwise, pairwise_reduce_scatter},
    {BP_REDUCE_SCATTERV, Algorithm::kRing, ring_reduce_scatter},
    {BP_REDUCE_SCATTERV, Algorithm::kPairwise, pairwise_reduce_scatter},
    {BP_ALL_TO_ALL, Algorithm::kPairwise, pairwise_all_to_all},
    {BP_ALL_TO_ALL, Algorithm::kBruck, bruck_all_to_all},
    {BP_ALL_TO_ALLV, Algorithm::kPairwise, pairwise_all_to_allv},
    {BP_SCAN, Algorithm::kRecursiveDoubling, doubling_scan},
    {BP_EXSCAN, Algorithm::kRecursiveDoubling, doubling_exscan},
};

constexpr Entry kHierarchicalEntries[] = {
    {BP_BARRIER, Algorithm::kHierarchical, hierarchical_barrier},
    {BP_BROADCAST, Algorithm::kHierarchical, hierarchical_broadcast},
    {BP_REDUCE, Algorithm::kHierarchical, hierarchical_reduce},
    {BP_ALL_REDUCE, Algorithm::kHierarchical, hierarchical_all_reduce},
    {BP_GATHER, Algorithm::kHierarchical, hierarchical_gather},
    {BP_SCATTER, Algorithm::kHierarchical, hierarchical_scatter},
    {BP_ALL_GATHER, Algorithm::kHierarchical, hierarchical_all_gather},
    {BP_ALL_GATHERV, Algorithm::kHierarchical, hierarchical_all_gather},
    {BP_REDUCE_SCATTER, Algorithm::kHierarchical, hierarchical_reduce_scatter},
    {BP_REDUCE_SCATTERV, Algorithm::kHierarchical, hierarchical_reduce_scatter},
    {BP_ALL_TO_ALL, Algorithm::kHierarchical, hierarchical_all_to_all},
};

const Entry* hierarchical(uint32_t kind) {
  for (const Entry& entry : kHierarchicalEntries)
    if (entry.kind == kind) return &entry;
  return nullptr;
}

}  // namespace

bool has_hierarchical(uint32_t kind) { return hierarchical(kind) != nullptr; }

std::vector<Algorithm> algorithms_for(uint32_t kind) {
  std::vector<Algorithm> found;
  for (const Entry& entry : kEntries)
    if (entry.kind == kind) found.push_back(entry.algorithm);
  return found;
}

Schedule make_schedule(Algorithm algorithm, const CollectiveSpec& spec) {
  const Entry* const by_topology = algorithm == Algorithm::kHierarchical ? hierarchical(spec.kind) : nullptr;
  if (by_topology != nullptr && spec.topology != nullptr) {
    Schedule schedule = by_topology->make(spec);
    schedule.algorithm = algorithm;
    return schedule;
  }
  for (const Entry& entry : kEntries) {
    if (entry.kind != spec.kind || entry.algorithm != algorithm) continue;
    Schedule schedule = entry.make(spec);
    schedule.algorithm = algorithm;
    return schedule;
  }
  throw std::invalid_argument("no schedule for this kind of operation and algorithm");
}

std::string_view name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kRecursiveDoubling:
      return "recursive_doubling";
    case Algorithm::kBinomial:
      return "binomial";
    case Algorithm::kBruck:
      return "bruck";
    case Algorithm::kDissemination:
      return "dissemination";
    case Algorithm::kPairwise:
      return "pairwise";
    case Algorithm::kLinear:
      return "linear";
    case Algorithm::kHierarchical:
      return "hierarchical";
  }
  return "unknown";
}

}  // namespace backplane::core
