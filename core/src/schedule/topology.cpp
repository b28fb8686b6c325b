// SPDX-License-Identifier: Apache-2.0
#include "schedule/topology.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace backplane::core {

namespace {

std::vector<int32_t> all_ranks(size_t world_size) {
  std::vector<int32_t> ranks(world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// None if the level does not separate the ranks.
std::optional<Units> units_at(const std::vector<int32_t>& level, const std::vector<int32_t>& ranks, int32_t self,
                              int32_t root) {
  Units units;
  std::map<int32_t, size_t> number_of;  // of each unit of the level that has members
  for (const int32_t rank : ranks) {
    const auto [entry, fresh] = number_of.try_emplace(level[static_cast<size_t>(rank)], units.size());
    if (fresh) units.members.emplace_back();
    units.members[entry->second].push_back(rank);
    if (rank == self) units.unit = entry->second;
    if (rank == root) units.root_unit = entry->second;
  }
  if (units.size() < 2 || units.size() == ranks.size()) return std::nullopt;
  if (root >= 0) {
    std::vector<int32_t>& with_root = units.members[units.root_unit];
    std::rotate(with_root.begin(), std::find(with_root.begin(), with_root.end(), root), with_root.end());
  }
  const std::vector<int32_t>& own = units.own();
  units.place = static_cast<size_t>(std::find(own.begin(), own.end(), self) - own.begin());
  return units;
}

}  // namespace

bool Topology::is_flat() const {
  return std::none_of(levels.begin(), levels.end(), [](const std::vector<int32_t>& level) {
    return units_at(level, all_ranks(level.size()), 0, -1).has_value();
  });
}

size_t Units::smallest() const {
  size_t least = members.front().size();
  for (const auto& each : members) least = std::min(least, each.size());
  return least;
}

std::vector<int32_t> Units::across(size_t at) const {
  std::vector<int32_t> ranks;
  for (const auto& each : members) ranks.push_back(each[at]);
  return ranks;
}

std::optional<Units> next_units(const CollectiveSpec& spec, const std::vector<int32_t>& ranks, int32_t root,
                                size_t* level) {
  const auto& levels = spec.topology->levels;
  while (*level < levels.size()) {
    if (auto units = units_at(levels[(*level)++], ranks, spec.rank, root)) return units;
  }
  return std::nullopt;
}

std::optional<Units> outermost_units(const CollectiveSpec& spec, int32_t root) {
  const auto& levels = spec.topology->levels;
  for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
    if (auto units = units_at(*level, all_ranks(level->size()), spec.rank, root)) return units;
  }
  return std::nullopt;
}

}  // namespace backplane::core
