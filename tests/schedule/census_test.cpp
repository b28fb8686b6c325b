// SPDX-License-Identifier: Apache-2.0
//
// Schedules of up to 100,000 ranks: the connections that a rank needs.
#include "schedule/census.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>

#include "schedule/collective_case.hpp"

namespace backplane::core::testing {
namespace {

constexpr int32_t kWorldSizes[] = {2, 3, 17, 64, 1000, 1024, 100'000};

uint64_t log2_up(int32_t world_size) {
  return static_cast<uint64_t>(std::bit_width(static_cast<uint32_t>(world_size) - 1));
}

CollectiveSpec spec_of(uint32_t kind, int32_t world_size) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.world_size = world_size;
  spec.root = is_rooted(kind) ? world_size / 3 : 0;
  spec.count = is_cut(kind) ? static_cast<uint64_t>(world_size) : 1;
  return spec;
}

// Trees, rings and what doubles its distance; not those that exchange a message with each rank.
bool is_tree_or_ring(Algorithm algorithm) {
  return algorithm != Algorithm::kPairwise && algorithm != Algorithm::kLinear;
}

// Schedules with as many steps as there are ranks. Those of 100,000 ranks are made by scaling_table.
bool is_long(Algorithm algorithm, uint32_t kind) {
  return algorithm == Algorithm::kRing || (kind == BP_ALL_TO_ALL && algorithm == Algorithm::kBruck);
}

// Kinds whose sizes are the same on all ranks; the others use the same schedules.
std::vector<uint32_t> even_kinds() {
  std::vector<uint32_t> even;
  for (const uint32_t kind : collective_kinds()) {
    if (!is_varying(kind)) even.push_back(kind);
  }
  return even;
}

TEST(ScheduleCensus, TreesAndRingsConnectARankToLogarithmicallyManyOthers) {
  for (const uint32_t kind : even_kinds()) {
    for (const Algorithm algorithm : algorithms_for(kind)) {
      if (!is_tree_or_ring(algorithm)) continue;
      for (const int32_t world_size : kWorldSizes) {
        if (is_long(algorithm, kind) && world_size > 1024) continue;
        const Census census = take_census(algorithm, spec_of(kind, world_size), sample_of_ranks(world_size));
        // Two per doubling of the distance, one to each side, and the two neighbours of the ring.
        EXPECT_LE(census.connections, 2 * log2_up(world_size) + 2)
            << name_of_kind(kind) << " by " << name_of(algorithm) << " on " << world_size << " ranks";
        EXPECT_GE(census.connections, 1U) << name_of_kind(kind) << " by " << name_of(algorithm);
      }
    }
  }
}

// A program uses many operations: their connections together.
TEST(ScheduleCensus, AllTreesAndRingsTogetherConnectARankToLogarithmicallyManyOthers) {
  for (const int32_t world_size : kWorldSizes) {
    for (const int32_t rank : sample_of_ranks(world_size)) {
      std::set<int32_t> peers;
      for (const uint32_t kind : even_kinds()) {
        for (const Algorithm algorithm : algorithms_for(kind)) {
          if (!is_tree_or_ring(algorithm) || (is_long(algorithm, kind) && world_size > 1024)) continue;
          CollectiveSpec spec = spec_of(kind, world_size);
          spec.rank = rank;
          spec.root = 0;
          peers.merge(peers_of(make_schedule(algorithm, spec)));
        }
      }
      // Those of the barrier, of the tree, and of recursive doubling with its fold.
      EXPECT_LE(peers.size(), 4 * log2_up(world_size) + 1) << "rank " << rank << " of " << world_size;
    }
  }
}

TEST(ScheduleCensus, PairwiseAndLinearConnectARankToAllOthers) {
  EXPECT_EQ(take_census(Algorithm::kPairwise, spec_of(BP_ALL_TO_ALL, 1000), {7}).connections, 999U);
  CollectiveSpec spec = spec_of(BP_GATHER, 1000);
  spec.root = 7;
  EXPECT_EQ(take_census(Algorithm::kLinear, spec, {7}).connections, 999U);
  EXPECT_EQ(take_census(Algorithm::kLinear, spec, {8}).connections, 1U);
}

// Inside a host to each rank at most, and between hosts as a tree or ring of the hosts.
TEST(ScheduleCensus, HierarchiesConnectARankToItsHostAndLogarithmicallyManyHosts) {
  constexpr int32_t kPerHost = 8;
  for (const int32_t world_size : {64, 1000, 1024, 10'000}) {
    const Topology topology = hosts_of(world_size, kPerHost);
    for (const uint32_t kind : {BP_BARRIER, BP_BROADCAST, BP_REDUCE, BP_ALL_REDUCE, BP_ALL_GATHER}) {
      CollectiveSpec spec = spec_of(kind, world_size);
      spec.root = 0;
      spec.topology = &topology;
      const Census census = take_census(Algorithm::kHierarchical, spec, sample_of_ranks(world_size));
      EXPECT_LE(census.connections, kPerHost - 1 + 2 * log2_up(world_size / kPerHost) + 2)
          << name_of_kind(kind) << " on " << world_size << " ranks";
    }
  }
}

// The simulator runs all schedules on up to 64 ranks. With more, each send still has its receive.
TEST(ScheduleCensus, MessagesMatchBeyondTheSimulator) {
  for (const uint32_t kind : even_kinds()) {
    for (const Algorithm algorithm : algorithms_for(kind)) {
      for (const int32_t world_size : {97, 128, 200}) {
        EXPECT_TRUE(all_messages_match(algorithm, spec_of(kind, world_size)))
            << name_of_kind(kind) << " by " << name_of(algorithm) << " on " << world_size << " ranks";
      }
    }
  }
  for (const uint32_t kind : {BP_BARRIER, BP_BROADCAST, BP_REDUCE, BP_ALL_REDUCE, BP_SCAN}) {
    EXPECT_TRUE(all_messages_match(algorithms_for(kind).front(), spec_of(kind, 10'000))) << name_of_kind(kind);
  }
}

// What is counted is what the simulator finds.
TEST(ScheduleCensus, AgreesWithTheSimulator) {
  for (const uint32_t kind : even_kinds()) {
    for (const Algorithm algorithm : algorithms_for(kind)) {
      const Shape shape{
          .kind = kind, .world_size = 13, .root = is_rooted(kind) ? 4 : 0, .count = is_cut(kind) ? 13U : 1U};
      const Traffic traffic = run_and_check(algorithm, shape);
      const Census census = take_census(algorithm, spec_of(kind, 13), all_ranks(13));
      EXPECT_EQ(census.bytes, traffic.elements) << name_of_kind(kind) << " by " << name_of(algorithm);
    }
  }
}

}  // namespace
}  // namespace backplane::core::testing
