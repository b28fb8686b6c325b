// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/spin_policy.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace backplane::base {
namespace {

using Clock = SpinPolicy::Clock;
using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// Binds the calling thread, and threads that it starts later, to one processor.
void share_one_processor() {
  const int processor = sched_getcpu();
  ASSERT_GE(processor, 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

TEST(SpinPolicyTest, LooksUntilReady) {
  SpinPolicy policy{hours(1)};
  int looks = 0;
  EXPECT_TRUE(policy.poll(Clock::time_point::max(), [&looks] { return ++looks == 1; }));
  EXPECT_EQ(looks, 1);
}

TEST(SpinPolicyTest, LooksNoLongerThanItsLimitOrTheCallers) {
  const auto never = [] { return false; };
  EXPECT_FALSE(SpinPolicy(std::chrono::nanoseconds(0)).poll(Clock::time_point::max(), [] { return true; }));
  const Clock::time_point end = Clock::now() + minutes(1);
  EXPECT_FALSE(SpinPolicy(microseconds(100)).poll(end, never));
  EXPECT_LT(Clock::now(), end) << "it looks for longer than its limit";
  EXPECT_FALSE(SpinPolicy(minutes(1)).poll(Clock::now() + microseconds(100), never));
  EXPECT_LT(Clock::now(), end) << "it looks for longer than the caller's limit";
}

TEST(SpinPolicyTest, GivesUpBesideAThreadThatComputes) {
  std::thread([] {
    share_one_processor();
    std::atomic<bool> done = false;
    std::thread computing([&done] {
      while (!done.load(std::memory_order_relaxed)) {
      }
    });
    SpinPolicy policy{hours(1)};
    const Clock::time_point end = Clock::now() + seconds(30);
    EXPECT_FALSE(policy.poll(end, [] { return false; }));
    EXPECT_LT(Clock::now(), end) << "each yield came back soon, beside a thread that never gives way";
    done.store(true);
    computing.join();
    const Clock::time_point late = Clock::now() + minutes(1);
    while (!policy.is_worthwhile(Clock::now()) && Clock::now() < late) std::this_thread::yield();
    EXPECT_TRUE(policy.poll(Clock::time_point::max(), [] { return true; })) << "it never tries again";
  }).join();
}

}  // namespace
}  // namespace backplane::base
