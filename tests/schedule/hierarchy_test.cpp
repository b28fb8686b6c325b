// SPDX-License-Identifier: Apache-2.0
//
// The schedules by topology: every kind, many shapes of hosts, roots and sizes, by symbolic simulation, and the bytes
// that cross between hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schedule/collective_case.hpp"
#include "schedule/schedule.hpp"
#include "schedule/topology.hpp"

namespace backplane::core::testing {
namespace {

using Level = std::vector<int32_t>;

// Ranks in the order of their hosts.
Level in_order(const std::vector<int32_t>& sizes) {
  Level hosts;
  for (size_t host = 0; host < sizes.size(); ++host)
    hosts.insert(hosts.end(), static_cast<size_t>(sizes[host]), static_cast<int32_t>(host));
  return hosts;
}

// Host numbers in an order that repeats itself only after all ranks.
Level shuffled(Level hosts) {
  Level mixed;
  size_t at = 0;
  while (!hosts.empty()) {
    at = (at * 7 + 5) % hosts.size();
    mixed.push_back(hosts[at]);
    hosts.erase(hosts.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return mixed;
}

std::vector<Topology> topologies() {
  std::vector<Topology> all;
  const std::vector<std::vector<int32_t>> shapes = {{2, 2},    {1, 3},       {3, 1},       {2, 2, 2},    {1, 1, 2},
                                                    {4, 2, 1}, {3, 3, 3, 3}, {5, 1, 1, 4}, {4, 4, 4, 4}, {7, 8}};
  for (const auto& sizes : shapes) {
    all.push_back({{in_order(sizes)}});
    all.push_back({{shuffled(in_order(sizes))}});
  }
  all.push_back({{{0, 1, 0, 1, 0, 1}}});
  all.push_back({{in_order({2, 2, 2, 2}), in_order({4, 4})}});               // caches in hosts
  all.push_back({{in_order({1, 2, 3, 1, 1}), in_order({3, 4, 1})}});         // uneven
  all.push_back({{in_order({2, 2, 2, 2}), Level{0, 0, 0, 0, 0, 0, 0, 0}}});  // on one host
  all.push_back({{Level{0, 1, 2, 3}, Level{0, 0, 1, 1}, Level{0, 0, 0, 0}}});
  return all;
}

std::string describe(const Topology& topology) {
  std::string text;
  for (const Level& level : topology.levels) {
    text += text.empty() ? "" : " | ";
    for (const int32_t unit : level) text += std::to_string(unit) + " ";
  }
  return text;
}

std::vector<uint32_t> hierarchical_kinds() {
  std::vector<uint32_t> kinds;
  for (const uint32_t kind : collective_kinds()) {
    if (has_hierarchical(kind)) kinds.push_back(kind);
  }
  return kinds;
}

TEST(Hierarchy, HasTheCollectivesThatGainFromIt) {
  EXPECT_EQ(hierarchical_kinds().size(), 11u);
  EXPECT_FALSE(has_hierarchical(BP_SCAN));
  EXPECT_FALSE(has_hierarchical(BP_ALL_TO_ALLV));
}

class HierarchyOf : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Kinds, HierarchyOf, ::testing::ValuesIn(hierarchical_kinds()),
                         [](const auto& info) { return name_of_kind(info.param); });

// Sizes of elements make the same few symbols small, large, and so large that all ranks have a share.
TEST_P(HierarchyOf, IsCorrectOnEveryTopology) {
  const uint32_t kind = GetParam();
  for (const Topology& topology : topologies()) {
    const auto world_size = static_cast<int32_t>(topology.levels.front().size());
    for (const uint64_t element_size : {uint64_t{1}, uint64_t{1000}, uint64_t{16384}}) {
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{5}, uint64_t{17}}) {
        for (int32_t root = 0; root < (is_rooted(kind) ? world_size : 1); ++root) {
          for (const bool in_place : {false, true}) {
            if (in_place && !has_in_place(kind)) continue;
            const Shape shape{kind, world_size, root, count, in_place, element_size, &topology};
            try {
              run_and_check(Algorithm::kHierarchical, shape);
            } catch (const SimulationError& e) {
              ADD_FAILURE() << e.what() << ": count " << count << " of " << element_size << " bytes, root " << root
                            << ", in place " << in_place << ", hosts " << describe(topology);
              return;
            }
          }
        }
      }
    }
  }
}

TEST(Hierarchy, NoRankLeavesABarrierBeforeAllHaveEntered) {
  for (const Topology& topology : topologies()) {
    const auto world_size = static_cast<int32_t>(topology.levels.front().size());
    const Traffic traffic =
        run_and_check(Algorithm::kHierarchical, {BP_BARRIER, world_size, 0, 0, false, 1, &topology});
    EXPECT_TRUE(traffic.all_received_from_all) << describe(topology);
  }
}

std::map<int32_t, uint64_t> sizes_of(const Level& level) {
  std::map<int32_t, uint64_t> sizes;
  for (const int32_t unit : level) ++sizes[unit];
  return sizes;
}

// The least elements that the busiest host must send or receive, for blocks or buffers of `count` elements. Broadcast
// and reduce in two halves (scatter and all_gather) send up to twice the least from and to the root's host.
uint64_t least_between(uint32_t kind, const Level& level, int32_t root, uint64_t count) {
  const auto sizes = sizes_of(level);
  const uint64_t all = level.size();
  const uint64_t hosts = sizes.size();
  uint64_t smallest = all;
  uint64_t exchanged = 0;
  for (const auto& [unit, size] : sizes) {
    smallest = std::min(smallest, size);
    exchanged = std::max(exchanged, size * (all - size));
  }
  switch (kind) {
    case BP_BARRIER:
      return 0;
    case BP_BROADCAST:
    case BP_REDUCE:
    case BP_ALL_REDUCE:
      return 2 * count * (hosts - 1) / hosts;
    case BP_GATHER:
    case BP_SCATTER:
      return count * (all - sizes.at(level[static_cast<size_t>(root)]));
    case BP_ALL_TO_ALL:
      return count * exchanged;
    default:
      return count * (all - smallest);
  }
}

// Large data. Elements do not divide evenly among shares and hosts, which adds a few.
TEST_P(HierarchyOf, SendsTheLeastBytesBetweenHosts) {
  const uint32_t kind = GetParam();
  if (is_varying(kind)) return;  // as their collective of equal blocks
  for (const Topology& topology : topologies()) {
    const Level& hosts = topology.levels.back();
    if (sizes_of(hosts).size() == 1 || topology.levels.size() > 2) continue;
    const auto world_size = static_cast<int32_t>(hosts.size());
    const uint64_t count = 240;
    for (int32_t root = 0; root < (is_rooted(kind) ? world_size : 1); ++root) {
      const Traffic traffic =
          run_and_check(Algorithm::kHierarchical, {kind, world_size, root, count, false, 16384, &topology});
      EXPECT_LE(traffic.between, least_between(kind, hosts, root, count) + 16)
          << "root " << root << ", hosts " << describe(topology);
    }
  }
}

// The flat schedules send more, otherwise the topology would gain nothing.
TEST(Hierarchy, SendsFewerBytesBetweenHostsThanARing) {
  const Topology hosts{{shuffled(in_order({4, 4}))}};
  const auto between = [&hosts](Algorithm algorithm, uint32_t kind) {
    return run_and_check(algorithm, {kind, 8, 0, 240, false, 16384, &hosts}).between;
  };
  for (const uint32_t kind : {BP_ALL_REDUCE, BP_ALL_GATHER, BP_REDUCE_SCATTER}) {
    EXPECT_LT(between(Algorithm::kHierarchical, kind), between(Algorithm::kRing, kind)) << name_of_kind(kind);
  }
}

// One message leaves each of two hosts and one arrives.
TEST(Hierarchy, ExchangesOneMessageBetweenHostsForSmallData) {
  const Level level = shuffled(in_order({4, 4}));
  const Topology hosts{{level}};
  for (const uint32_t kind : {BP_ALL_REDUCE, BP_ALL_GATHER, BP_REDUCE_SCATTER, BP_ALL_TO_ALL, BP_BARRIER}) {
    size_t sent = 0;
    const CollectiveCase test({kind, 8, 0, kind == BP_BARRIER ? uint64_t{0} : uint64_t{2}, false, 4, &hosts});
    for (int32_t rank = 0; rank < 8; ++rank) {
      const Schedule schedule = make_schedule(Algorithm::kHierarchical, test.spec(rank));
      for (const Step& step : schedule.steps) {
        const bool sends = step.kind == Step::Kind::kSend;
        if (sends && level[static_cast<size_t>(step.peer)] != level[static_cast<size_t>(rank)]) ++sent;
      }
    }
    EXPECT_EQ(sent, 2u) << name_of_kind(kind);
  }
}

TEST(Topology, IsFlatWithoutALevelThatSeparates) {
  EXPECT_TRUE(Topology{}.is_flat());
  EXPECT_TRUE((Topology{{{0, 0, 0}}}).is_flat());
  EXPECT_TRUE((Topology{{{0, 1, 2}}}).is_flat());
  EXPECT_TRUE((Topology{{{0, 1, 2}, {0, 0, 0}}}).is_flat());
  EXPECT_FALSE((Topology{{{0, 1, 0}}}).is_flat());
  EXPECT_FALSE((Topology{{{0, 1, 2}, {0, 0, 1}}}).is_flat());
}

}  // namespace
}  // namespace backplane::core::testing
