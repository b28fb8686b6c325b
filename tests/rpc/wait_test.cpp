// SPDX-License-Identifier: Apache-2.0
#include "rpc/wait.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace backplane::core::rpc {
namespace {

// After a long wait the next wait sleeps at once; after a brief one it polls first.
TEST(RpcWaitTest, PollsAfterBriefWaitsOnly) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int polls = 0;
  const auto third_time = [&polls] { return ++polls == 3; };
  bool seen = false;
  while (!seen && std::chrono::steady_clock::now() < until) {  // other threads may occupy the processor
    polls = 0;
    begin_wait();
    end_wait();
    begin_wait();
    seen = wait_briefly(third_time);
    end_wait();
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(polls, 3);
  begin_wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  end_wait();
  begin_wait();
  EXPECT_FALSE(wait_briefly([] { return true; }));
  end_wait();
}

}  // namespace
}  // namespace backplane::core::rpc
