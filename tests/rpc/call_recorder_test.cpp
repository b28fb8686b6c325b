// SPDX-License-Identifier: Apache-2.0
#include "rpc/call_recorder.hpp"

#include <gtest/gtest.h>

namespace backplane::core::rpc {
namespace {

// After the death of a worker the group has fewer ranks, so they differ from the workers' ranks.
TEST(RpcCallRecorderTest, ReportsGroupRanksToLayers) {
  using Ranks = std::vector<int32_t>;
  EXPECT_EQ(ranks_among({4, 5, 7}, {4, 5, 7}), Ranks({0, 1, 2}));
  EXPECT_EQ(ranks_among({4, 5, 7}, {5, 7}), Ranks({-1, 0, 1}));
}

}  // namespace
}  // namespace backplane::core::rpc
