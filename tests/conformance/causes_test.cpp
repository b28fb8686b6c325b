// SPDX-License-Identifier: Apache-2.0
#include "causes.hpp"

#include <gtest/gtest.h>

namespace backplane::conformance {
namespace {

FindingInTime finding(int32_t rank, const std::string& actual, Nanoseconds at, bool is_last) {
  return {{rank, "something else", actual, ""}, at, is_last};
}

std::vector<int32_t> ranks_of(const std::vector<FindingInTime>& all) {
  std::vector<int32_t> ranks;
  for (const Finding& each : causes(all)) ranks.push_back(each.rank);
  return ranks;
}

const std::string kGone = "BP_PEER_LOST (5): the connection to rank 0 is gone";

TEST(Causes, LeaveOutTheLossOfARankThatHasFailed) {
  EXPECT_EQ(ranks_of({finding(1, kGone, 20, true), finding(0, "7", 10, true), finding(2, "8", 30, true)}),
            (std::vector<int32_t>{0, 2}));
}

TEST(Causes, KeepALossThatComesFirst) {
  EXPECT_EQ(ranks_of({finding(1, kGone, 10, true), finding(0, "7", 20, true)}), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(ranks_of({finding(0, "7", 5, false), finding(1, kGone, 10, true)}), (std::vector<int32_t>{0, 1}));
}

}  // namespace
}  // namespace backplane::conformance
