// SPDX-License-Identifier: Apache-2.0
//
// Which ranks of a group are near each other: on one host or, with more levels, behind one cache or in one rack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/schedule.hpp"

namespace backplane::core {

struct Topology {
  // By level, the innermost first: the number of each rank's unit. Messages inside a unit cost less than between units.
  // A unit of a level consists of whole units of the level before it.
  std::vector<std::vector<int32_t>> levels;

  // Whether some level separates ranks: it has more than one unit, and one of them has several ranks.
  bool is_flat() const;
};

// Some ranks of a group by their units at one level.
struct Units {
  std::vector<std::vector<int32_t>> members;  // of each unit; units in the order of their first members
  size_t unit = 0;                            // of this rank
  size_t place = 0;                           // of this rank among the members of its unit
  size_t root_unit = 0;                       // the root's

  const std::vector<int32_t>& own() const { return members[unit]; }
  size_t size() const { return members.size(); }
  size_t smallest() const;
  // The ranks at one place of all units, which must have so many.
  std::vector<int32_t> across(size_t place) const;
};

// The units at the first level from *level on that separates `ranks`, and sets *level to the next one; none if no level
// does. spec.rank is one of `ranks`. `root`: the rank that is the first of its unit's members, -1: none.
std::optional<Units> next_units(const CollectiveSpec& spec, const std::vector<int32_t>& ranks, int32_t root,
                                size_t* level);

// The units of all ranks at the outermost level that separates them; none if no level does.
std::optional<Units> outermost_units(const CollectiveSpec& spec, int32_t root);

}  // namespace backplane::core
