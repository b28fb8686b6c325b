// SPDX-License-Identifier: Apache-2.0
//
// Every algorithm of every kind, for every world size from 1 to 64 and every root, by symbolic simulation.
#include "schedule/schedule.hpp"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "schedule/collective_case.hpp"
#include "schedule/simulator.hpp"

namespace backplane::core::testing {
namespace {

constexpr int32_t kLargestWorld = 64;  // the bits of Symbol::contributors

std::string describe(const Shape& shape) {
  return "world size " + std::to_string(shape.world_size) + ", root " + std::to_string(shape.root) + ", count " +
         std::to_string(shape.count) + (shape.in_place ? ", in place" : "");
}

using KindAndAlgorithm = std::tuple<uint32_t, Algorithm>;

std::vector<KindAndAlgorithm> algorithms_if(bool (*wanted)(uint32_t kind)) {
  std::vector<KindAndAlgorithm> all;
  for (const uint32_t kind : collective_kinds())
    if (wanted(kind))
      for (const Algorithm algorithm : algorithms_for(kind)) all.emplace_back(kind, algorithm);
  return all;
}

std::string test_name(const ::testing::TestParamInfo<KindAndAlgorithm>& info) {
  return name_of_kind(std::get<0>(info.param)) + "_" + std::string(name_of(std::get<1>(info.param)));
}

class EveryAlgorithm : public ::testing::TestWithParam<KindAndAlgorithm> {
 protected:
  uint32_t kind() const { return std::get<0>(GetParam()); }
  Algorithm algorithm() const { return std::get<1>(GetParam()); }

  // In place and not. False after the first error, so that it is reported once.
  bool holds(Shape shape) const {
    shape.in_place = false;
    if (!holds_as_given(shape)) return false;
    shape.in_place = true;
    return !has_in_place(kind()) || holds_as_given(shape);
  }
  bool holds_as_given(Shape shape) const {
    shape.kind = kind();
    try {
      run_and_check(algorithm(), shape);
      return true;
    } catch (const SimulationError& error) {
      ADD_FAILURE() << describe(shape) << ": " << error.what();
      return false;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(, EveryAlgorithm, ::testing::ValuesIn(algorithms_if([](uint32_t) { return true; })),
                         test_name);
class EveryRootedAlgorithm : public EveryAlgorithm {};
INSTANTIATE_TEST_SUITE_P(, EveryRootedAlgorithm, ::testing::ValuesIn(algorithms_if(is_rooted)), test_name);

// The last count is divisible only by world size 1: chunks of different sizes, none of them empty.
std::vector<uint64_t> counts_for(uint32_t kind, int32_t world_size) {
  if (!is_cut(kind)) return {0, 1, 5};
  return {0, 1, 2, 7, static_cast<uint64_t>(world_size) + 1};
}

TEST_P(EveryAlgorithm, IsCorrectForEveryWorldSize) {
  for (int32_t world_size = 1; world_size <= kLargestWorld; ++world_size)
    for (const uint64_t count : counts_for(kind(), world_size))
      ASSERT_TRUE(holds({.world_size = world_size, .root = world_size / 3, .count = count}));
}

TEST_P(EveryRootedAlgorithm, IsCorrectForEveryRoot) {
  for (int32_t world_size = 2; world_size <= kLargestWorld; ++world_size)
    for (int32_t root = 0; root < world_size; ++root) {
      const bool in_place = has_in_place(kind()) && root % 2 == 1;
      ASSERT_TRUE(holds_as_given({.world_size = world_size, .root = root, .count = 3, .in_place = in_place}));
      if (world_size > 16) continue;
      for (const uint64_t count : counts_for(kind(), world_size))
        ASSERT_TRUE(holds({.world_size = world_size, .root = root, .count = count}));
    }
}

TEST(OrderOfOperands, IsTheOrderOfRanksInRecursiveDoubling) {
  for (int32_t world_size = 1; world_size <= kLargestWorld; ++world_size) {
    const Traffic traffic =
        run_and_check(Algorithm::kRecursiveDoubling, {.kind = BP_ALL_REDUCE, .world_size = world_size, .count = 2});
    ASSERT_TRUE(traffic.in_order) << world_size;
  }
}

TEST(OrderOfOperands, IsTheOrderOfRanksInBinomialReduceToRank0) {
  for (int32_t world_size = 1; world_size <= kLargestWorld; ++world_size) {
    const Traffic traffic =
        run_and_check(Algorithm::kBinomial, {.kind = BP_REDUCE, .world_size = world_size, .count = 2});
    ASSERT_TRUE(traffic.in_order) << world_size;
  }
}

TEST(Barrier, NoRankLeavesBeforeAllHaveEntered) {
  for (int32_t world_size = 1; world_size <= kLargestWorld; ++world_size) {
    const Traffic traffic = run_and_check(Algorithm::kDissemination, {.kind = BP_BARRIER, .world_size = world_size});
    ASSERT_TRUE(traffic.all_received_from_all) << world_size;
  }
}

// The root's output is its input, which other threads may read meanwhile.
TEST(RingBroadcast, SendsNothingToTheRoot) {
  for (int32_t world_size = 2; world_size <= kLargestWorld; ++world_size) {
    const CollectiveSpec root{.kind = BP_BROADCAST, .rank = 0, .world_size = world_size, .count = 1000};
    const Schedule schedule = make_schedule(Algorithm::kRing, root);
    ASSERT_FALSE(schedule.steps.empty()) << world_size;
    for (const Step& step : schedule.steps) ASSERT_NE(step.kind, Step::Kind::kRecv) << world_size;
  }
}

TEST(RingAllReduce, MovesNoMoreBytesInSlices) {
  for (const uint64_t element_size : {1 << 17, 1 << 19, 1 << 21})
    for (int32_t world_size = 1; world_size <= kLargestWorld; world_size = world_size * 3 / 2 + 1)
      for (const uint64_t count : {1, 2, 7, 101})
        for (const bool in_place : {false, true}) {
          const Shape shape{.kind = BP_ALL_REDUCE,
                            .world_size = world_size,
                            .count = count,
                            .in_place = in_place,
                            .element_size = element_size};
          const Traffic traffic = run_and_check(Algorithm::kRing, shape);
          const auto others = static_cast<uint64_t>(world_size - 1);
          const uint64_t bytes = count * element_size;
          // Each slice is a ring with chunks of two sizes. The number of slices is at most the number of half megabytes
          // per rank, rounded up to an even number.
          const uint64_t slices = 2 + bytes / static_cast<uint64_t>(world_size) / (512 * 1024);
          ASSERT_LE(traffic.messages, slices * 2 * others) << describe(shape);
          ASSERT_LE(traffic.elements, 2 * others * (count / static_cast<uint64_t>(world_size) + slices))
              << describe(shape);
        }
}

TEST(MakeSchedule, RefusesAnAlgorithmOfAnotherKind) {
  EXPECT_THROW(make_schedule(Algorithm::kRing, {.kind = BP_BARRIER}), std::invalid_argument);
  EXPECT_NO_THROW(make_schedule(Algorithm::kDissemination, {.kind = BP_BARRIER}));
  EXPECT_TRUE(algorithms_for(BP_SEND).empty());
}

}  // namespace
}  // namespace backplane::core::testing
