// SPDX-License-Identifier: Apache-2.0
#include "schedule/planner.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace backplane::core::testing {
namespace {

bool same(const Region& a, const Region& b) { return a.where == b.where && a.offset == b.offset && a.count == b.count; }

bool same(const Step& a, const Step& b) {
  return a.kind == b.kind && a.peer == b.peer && same(a.target, b.target) && same(a.source, b.source) &&
         a.source_first == b.source_first && a.completes == b.completes;
}

void expect_made_for(const Schedule& schedule, const Problem& problem) {
  const Schedule fresh = make_schedule(choose_algorithm(problem), problem);
  EXPECT_EQ(schedule.algorithm, fresh.algorithm);
  EXPECT_EQ(schedule.round_ends, fresh.round_ends);
  EXPECT_EQ(schedule.scratch_count, fresh.scratch_count);
  ASSERT_EQ(schedule.steps.size(), fresh.steps.size());
  for (size_t i = 0; i < fresh.steps.size(); ++i) EXPECT_TRUE(same(schedule.steps[i], fresh.steps[i])) << i;
}

constexpr Problem kReduce = {.kind = BP_REDUCE, .rank = 2, .world_size = 5, .root = 1, .count = 10};

TEST(Planner, KeepsTheLastSchedule) {
  Planner planner;
  const Step* const steps = planner.schedule(kReduce).steps.data();
  planner.trim();
  const Schedule& again = planner.schedule(kReduce);
  EXPECT_EQ(again.steps.data(), steps);
  expect_made_for(again, kReduce);
}

TEST(Planner, WritesAnotherOneForWhateverIsDifferent) {
  Planner planner;
  std::vector<Problem> others(5, kReduce);
  others[0].kind = BP_ALL_REDUCE;
  others[1].root = 2;
  others[2].count = 11;
  others[3].count = uint64_t{1} << 24;
  others[4].count = uint64_t{1} << 22;
  others[4].element_size = 4;
  for (const Problem& other : others) {
    expect_made_for(planner.schedule(kReduce), kReduce);
    expect_made_for(planner.schedule(other), other);
  }
}

TEST(Planner, ReadsTheCountsOfVariantsAnew) {
  Planner planner;
  uint64_t counts[] = {1, 2};
  uint64_t displs[] = {0, 1};
  Problem root = {.kind = BP_GATHERV, .rank = 0, .world_size = 2, .own_count = 1};
  root.out_counts = counts;
  root.out_displs = displs;
  expect_made_for(planner.schedule(root), root);
  counts[1] = 3;
  expect_made_for(planner.schedule(root), root);

  Planner others;  // another rank's
  Problem sender = {.kind = BP_GATHERV, .rank = 1, .world_size = 2, .own_count = 2};
  expect_made_for(others.schedule(sender), sender);
  sender.own_count = 3;
  expect_made_for(others.schedule(sender), sender);
}

TEST(Planner, SurvivesAProblemWithoutASchedule) {
  Planner planner;
  expect_made_for(planner.schedule(kReduce), kReduce);
  EXPECT_THROW(planner.schedule({.kind = BP_SEND}), std::out_of_range);
  expect_made_for(planner.schedule(kReduce), kReduce);
}

TEST(Planner, KeepsNoLongSchedule) {
  const Problem large = {.kind = BP_ALL_TO_ALL, .rank = 0, .world_size = 2000, .count = 1 << 20};
  Planner planner;
  const Schedule& kept = planner.schedule(large);  // the planner's own
  ASSERT_GT(kept.steps.size(), 2000u);
  planner.trim();
  EXPECT_EQ(kept.steps.capacity(), 0u);
  expect_made_for(planner.schedule(large), large);
  expect_made_for(planner.schedule(kReduce), kReduce);
}

}  // namespace
}  // namespace backplane::core::testing
