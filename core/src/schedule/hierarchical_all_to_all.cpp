// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/collectives.hpp"
#include "schedule/hierarchy.hpp"

namespace backplane::core {

namespace {

// The most bytes of blocks that one rank of a unit carries for the others.
constexpr uint64_t kMostCarried = 65536;

size_t largest(const Units& units) {
  size_t most = 0;
  for (const auto& each : units.members) most = std::max(most, each.size());
  return most;
}

}  // namespace

// Every block crosses between units once in any algorithm. Large blocks go directly. Small ones are gathered at the
// first rank of their unit, which exchanges one message with each other unit.
Schedule hierarchical_all_to_all(const CollectiveSpec& spec) {
  const auto units = outermost_units(spec, -1);
  const auto world_size = static_cast<uint64_t>(spec.world_size);
  const uint64_t count = spec.count;
  if (!units || largest(*units) * world_size * count * spec.element_size > kMostCarried) {
    return pairwise_all_to_all(flat(spec));
  }
  const std::vector<int32_t>& own = units->own();
  const uint64_t row = world_size * count;  // the blocks of one rank
  const uint64_t rows = row * own.size();
  const Region gathered = scratch(0, rows);
  const Region leaving = scratch(rows, rows);  // by unit, then by sender, then by receiver
  const Region arrived = scratch(2 * rows, rows);
  const uint64_t scratch_at = 3 * rows;
  Builder builder;
  append_flat(builder, spec, BP_GATHER, own, 0, row, {input(0, row), gathered, scratch_at}, false);
  builder.end_round();
  if (units->place == 0) {
    std::vector<uint64_t> begins;  // of each unit in `leaving` and `arrived`
    uint64_t at = 0;
    for (const auto& members : units->members) {
      begins.push_back(at);
      for (size_t sender = 0; sender < own.size(); ++sender) {
        for (const Region& run : runs_of(members, Blocks::equal(count), BufferRole::kScratch)) {
          builder.copy(part_of(leaving, at, run.count), part_of(gathered, sender * row + run.offset, run.count));
          at += run.count;
        }
      }
    }
    builder.end_round();
    const size_t size = units->size();
    const auto exchanged = [&](const Region& all, size_t unit) {
      return part_of(all, begins[unit], units->members[unit].size() * own.size() * count);
    };
    for (size_t distance = 1; distance < size; ++distance) {
      const size_t to = (units->unit + distance) % size;
      const size_t from = (units->unit + size - distance) % size;
      builder.send(units->members[to].front(), exchanged(leaving, to));
      builder.recv(units->members[from].front(), exchanged(arrived, from));
      builder.end_round();
    }
    for (size_t unit = 0; unit < size; ++unit) {  // back into one row for each receiver
      const Region& from = unit == units->unit ? leaving : arrived;
      at = begins[unit];
      for (const int32_t sender : units->members[unit]) {
        for (size_t receiver = 0; receiver < own.size(); ++receiver) {
          builder.copy(part_of(gathered, receiver * row + static_cast<uint64_t>(sender) * count, count),
                       part_of(from, at, count));
          at += count;
        }
      }
    }
  }
  append_flat(builder, spec, BP_SCATTER, own, 0, row, {gathered, output(0, row), scratch_at}, false);
  return std::move(builder).finish();
}

}  // namespace backplane::core
