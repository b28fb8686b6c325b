// SPDX-License-Identifier: Apache-2.0
#include "security/frame_budget.hpp"

#include <gtest/gtest.h>

namespace backplane::core {
namespace {

using std::chrono::seconds;
using Connections = std::vector<ConnectionId>;

class FrameBudgetTest : public testing::Test {
 protected:
  const FrameBudget::Time start_ = {};
  FrameBudget budget_{FrameLimits{.free_bytes = 10,
                                  .large_bytes = 100,
                                  .max_bytes = 200,
                                  .max_large_bytes = 1000,
                                  .grace = seconds(2),
                                  .bytes_per_second = 50}};
};

TEST_F(FrameBudgetTest, FramesBeyondTheLimitWaitInOrder) {
  EXPECT_TRUE(budget_.begin(1, 600, start_));
  EXPECT_FALSE(budget_.begin(2, 500, start_));
  EXPECT_FALSE(budget_.begin(3, 300, start_)) << "it would fit, but another one waits";
  EXPECT_FALSE(budget_.begin(2, 500, start_)) << "asked again";
  EXPECT_FALSE(budget_.begin(4, 900, start_));
  EXPECT_EQ(budget_.waiting(), (Connections{2, 3, 4}));
  EXPECT_EQ(budget_.finish(1, start_), (Connections{2, 3}));
  EXPECT_EQ(budget_.waiting(), Connections{4});
  EXPECT_TRUE(budget_.begin(2, 500, start_));
  EXPECT_EQ(budget_.finish(4, start_), Connections{}) << "closed while it waited";
  EXPECT_EQ(budget_.finish(2, start_), Connections{});
  EXPECT_TRUE(budget_.begin(5, 700, start_));
  EXPECT_EQ(budget_.finish(6, start_), Connections{}) << "unknown";
}

TEST_F(FrameBudgetTest, LargeFramesDoNotDelayOthers) {
  EXPECT_TRUE(budget_.begin(1, 1000, start_));
  EXPECT_FALSE(budget_.begin(2, 101, start_));
  EXPECT_TRUE(budget_.begin(3, 100, start_));
  EXPECT_TRUE(budget_.begin(4, 100, start_));
  EXPECT_FALSE(budget_.begin(5, 11, start_));
  EXPECT_TRUE(budget_.begin(6, 10, start_)) << "free";
  EXPECT_EQ(budget_.finish(3, start_), Connections{5});
  EXPECT_EQ(budget_.finish(1, start_), Connections{2});
}

TEST_F(FrameBudgetTest, NamesFramesThatArriveTooSlowly) {
  EXPECT_TRUE(budget_.begin(1, 600, start_));
  EXPECT_TRUE(budget_.begin(2, 10, start_));
  EXPECT_FALSE(budget_.begin(3, 500, start_));
  size_t arrived = 10;
  const auto slow = [this, &arrived](int after) {
    return budget_.slow(start_ + seconds(after), [&arrived](ConnectionId) { return arrived; });
  };
  EXPECT_EQ(slow(2), Connections{});
  EXPECT_EQ(slow(3), (Connections{1, 2})) << "one that waits is not read";
  arrived = 60;
  EXPECT_EQ(slow(3), Connections{});
  EXPECT_EQ(slow(4), (Connections{1, 2}));
  budget_.restart(start_ + seconds(3));
  EXPECT_EQ(slow(5), Connections{});
}

}  // namespace
}  // namespace backplane::core
