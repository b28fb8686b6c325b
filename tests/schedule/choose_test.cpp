// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "schedule/collective_case.hpp"
#include "schedule/schedule.hpp"

namespace backplane::core::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

Algorithm choice(uint32_t kind, int32_t world_size, uint64_t bytes) {
  return choose_algorithm({.kind = kind, .world_size = world_size, .count = bytes});
}

TEST(ChooseAlgorithm, ReturnsAnAlgorithmOfTheKind) {
  for (const uint32_t kind : collective_kinds()) {
    const auto algorithms = algorithms_for(kind);
    ASSERT_FALSE(algorithms.empty()) << name_of_kind(kind);
    for (const int32_t world_size : {1, 2, 3, 8, 63, 64, 1000, 100000, 2147483647})
      for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{100000}, 100 * kMiB, ~uint64_t{0}})
        EXPECT_NE(std::ranges::find(algorithms, choice(kind, world_size, bytes)), algorithms.end())
            << name_of_kind(kind) << " " << world_size << " " << bytes;
  }
}

// The choice must not depend on data that differs between ranks.
TEST(ChooseAlgorithm, UsesOnlyDataThatAllRanksKnow) {
  const uint64_t counts[] = {1, 1u << 30, 0, 5};
  for (const uint32_t kind : collective_kinds()) {
    const CollectiveSpec one{.kind = kind, .rank = 0, .world_size = 4, .root = 1, .count = is_varying(kind) ? 0 : kMiB};
    CollectiveSpec other = one;
    other.rank = 3;
    other.own_count = 77;
    other.in_counts = other.in_displs = other.out_counts = other.out_displs = counts;
    if (is_varying(kind)) other.count = 1u << 30;
    EXPECT_EQ(choose_algorithm(one), choose_algorithm(other)) << name_of_kind(kind);
  }
}

TEST(ChooseAlgorithm, MinimizesMessagesForSmallDataAndBytesForLargeData) {
  EXPECT_EQ(choice(BP_ALL_REDUCE, 8, 64), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(choice(BP_ALL_REDUCE, 8, 64 * kMiB), Algorithm::kRing);
  EXPECT_EQ(choice(BP_BROADCAST, 8, 64), Algorithm::kBinomial);
  EXPECT_EQ(choice(BP_BROADCAST, 8, 64 * kMiB), Algorithm::kRing);
  EXPECT_EQ(choice(BP_REDUCE, 8, 64), Algorithm::kBinomial);
  EXPECT_EQ(choice(BP_REDUCE, 8, 64 * kMiB), Algorithm::kRing);
  EXPECT_EQ(choice(BP_ALL_GATHER, 8, 64), Algorithm::kBruck);
  EXPECT_EQ(choice(BP_ALL_GATHER, 8, 64 * kMiB), Algorithm::kRing);
  EXPECT_EQ(choice(BP_ALL_TO_ALL, 8, 64), Algorithm::kBruck);
  EXPECT_EQ(choice(BP_ALL_TO_ALL, 8, 64 * kMiB), Algorithm::kPairwise);
  EXPECT_EQ(choice(BP_GATHER, 8, 64), Algorithm::kBinomial);
  EXPECT_EQ(choice(BP_GATHER, 8, 64 * kMiB), Algorithm::kLinear);
  EXPECT_EQ(choice(BP_SCATTER, 8, 64 * kMiB), Algorithm::kLinear);
}

// Once the bytes dominate the cost, more bytes do not change the choice.
TEST(ChooseAlgorithm, ChangesAtMostOnceAsTheCountGrows) {
  for (const uint32_t kind : collective_kinds())
    for (const int32_t world_size : {2, 3, 5, 8, 16, 33, 64, 1024}) {
      int changes = 0;
      Algorithm last = choice(kind, world_size, 1);
      for (uint64_t bytes = 2; bytes < uint64_t{1} << 40; bytes *= 2) {
        const Algorithm now = choice(kind, world_size, bytes);
        changes += now != last ? 1 : 0;
        last = now;
      }
      EXPECT_LE(changes, 1) << name_of_kind(kind) << " " << world_size;
    }
}

TEST(ChooseAlgorithm, PrefersTheTopologyForTheKindsThatHaveOne) {
  const Topology topology{{{0, 0, 1, 1}}};
  for (const uint32_t kind : collective_kinds()) {
    CollectiveSpec spec{.kind = kind, .world_size = 4, .count = is_varying(kind) ? 0 : kMiB};
    const Algorithm flat = choose_algorithm(spec);
    spec.topology = &topology;
    EXPECT_EQ(choose_algorithm(spec), has_hierarchical(kind) ? Algorithm::kHierarchical : flat) << name_of_kind(kind);
  }
}

TEST(NameOf, IsDifferentForEachAlgorithm) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Algorithm::kHierarchical); ++i)
    names.insert(name_of(static_cast<Algorithm>(i)));
  EXPECT_EQ(names.size(), 8u);
  EXPECT_EQ(names.count("unknown"), 0u);
}

}  // namespace
}  // namespace backplane::core::testing
