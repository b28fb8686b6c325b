// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule_cache.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace backplane::core::testing {
namespace {

bool same(const Region& a, const Region& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.count == b.count;
}

bool same(const Step& a, const Step& b) {
  return a.kind == b.kind && a.peer == b.peer && same(a.target, b.target) && same(a.source, b.source) &&
         a.source_first == b.source_first && a.completes == b.completes;
}

void expect_made_for(const Schedule& schedule, const CollectiveSpec& spec) {
  const Schedule fresh = make_schedule(choose_algorithm(spec), spec);
  EXPECT_EQ(schedule.algorithm, fresh.algorithm);
  EXPECT_EQ(schedule.round_ends, fresh.round_ends);
  EXPECT_EQ(schedule.scratch_count, fresh.scratch_count);
  ASSERT_EQ(schedule.steps.size(), fresh.steps.size());
  for (size_t i = 0; i < fresh.steps.size(); ++i) EXPECT_TRUE(same(schedule.steps[i], fresh.steps[i])) << i;
}

constexpr CollectiveSpec kReduce = {.kind = BP_REDUCE, .rank = 2, .world_size = 5, .root = 1, .count = 10};

TEST(ScheduleCache, KeepsTheLastSchedule) {
  ScheduleCache cache;
  const Step* const steps = cache.get(kReduce).steps.data();
  cache.trim();
  const Schedule& again = cache.get(kReduce);
  EXPECT_EQ(again.steps.data(), steps);
  expect_made_for(again, kReduce);
}

TEST(ScheduleCache, KeepsTheSchedulesOfOperationsThatAlternate) {
  ScheduleCache cache;
  CollectiveSpec other = kReduce;
  other.kind = BP_ALL_REDUCE;
  const Step* const steps = cache.get(kReduce).steps.data();
  const Step* const steps_of_other = cache.get(other).steps.data();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cache.get(kReduce).steps.data(), steps);
    EXPECT_EQ(cache.get(other).steps.data(), steps_of_other);
    cache.trim();
  }
}

TEST(ScheduleCache, MakesAScheduleForEachDifference) {
  ScheduleCache cache;
  std::vector<CollectiveSpec> others(6, kReduce);
  others[5].kind = BP_ALL_TO_ALL;
  others[5].count = uint64_t{1} << 24;
  others[5].may_overlap = false;
  others[0].kind = BP_ALL_REDUCE;
  others[1].root = 2;
  others[2].count = 11;
  others[3].count = uint64_t{1} << 24;
  others[4].count = uint64_t{1} << 22;
  others[4].element_size = 4;
  for (const CollectiveSpec& other : others) {
    expect_made_for(cache.get(kReduce), kReduce);
    expect_made_for(cache.get(other), other);
  }
}

TEST(ScheduleCache, ReadsTheCountsOfVariantsAgain) {
  ScheduleCache cache;
  uint64_t counts[] = {1, 2};
  uint64_t displs[] = {0, 1};
  CollectiveSpec root = {.kind = BP_GATHERV, .rank = 0, .world_size = 2, .own_count = 1};
  root.out_counts = counts;
  root.out_displs = displs;
  expect_made_for(cache.get(root), root);
  counts[1] = 3;
  expect_made_for(cache.get(root), root);

  ScheduleCache others;  // of another rank
  CollectiveSpec sender = {.kind = BP_GATHERV, .rank = 1, .world_size = 2, .own_count = 2};
  expect_made_for(others.get(sender), sender);
  sender.own_count = 3;
  expect_made_for(others.get(sender), sender);
}

TEST(ScheduleCache, RemainsUsableAfterASpecWithoutASchedule) {
  ScheduleCache cache;
  expect_made_for(cache.get(kReduce), kReduce);
  EXPECT_THROW(cache.get({.kind = BP_SEND}), std::out_of_range);
  expect_made_for(cache.get(kReduce), kReduce);
}

TEST(ScheduleCache, DropsALongSchedule) {
  const CollectiveSpec large = {.kind = BP_ALL_TO_ALL, .rank = 0, .world_size = 2000, .count = 1 << 20};
  ScheduleCache cache;
  const Schedule& kept = cache.get(large);
  ASSERT_GT(kept.steps.size(), 2000u);
  cache.trim();
  EXPECT_EQ(kept.steps.capacity(), 0u);
  expect_made_for(cache.get(large), large);
  expect_made_for(cache.get(kReduce), kReduce);
}

}  // namespace
}  // namespace backplane::core::testing
