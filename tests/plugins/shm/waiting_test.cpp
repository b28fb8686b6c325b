// SPDX-License-Identifier: Apache-2.0
#include "waiting.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include "fabric.hpp"

namespace backplane::shm::test {
namespace {

// A quick look may leave something out, which nobody rings for again.
TEST(Waiting, LooksFullyBeforeItSleepsOrGivesUp) {
  Bell bell = {};
  Waiting waiting(bell, nullptr, Patience{20'000, 20'000});
  for (const int64_t timeout_ns : {INT64_C(0), INT64_C(10'000), INT64_C(5'000'000)}) {
    Look last = Look::kQuick;
    bool has_slept_badly = false;
    const auto ready = [&](Look look) {
      has_slept_badly = has_slept_badly || (bell.sleepers.load() > 0 && look == Look::kQuick);
      last = look;
      return false;
    };
    Limit limit(timeout_ns);
    EXPECT_EQ(waiting.until(limit, ready), End::kLate);
    EXPECT_EQ(last, Look::kFull);
    EXPECT_FALSE(has_slept_badly);
  }
}

// A rank that the scheduler has put on the processor of another one yields, however long it may poll.
TEST(Waiting, RanksOnOneProcessorYieldToEachOther) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(::sched_getcpu(), &here);
  ASSERT_EQ(::sched_setaffinity(0, sizeof here, &here), 0);
  const Memory memory(2);
  Peers first(memory.view, 0, 2);
  Peers second(memory.view, 1, 2);
  ASSERT_TRUE(first.enter() && second.enter());
  EXPECT_FALSE(first.shares_processor()) << "the other has not waited yet";
  Waiting waiting(memory.view.member(1).bell, &second, Patience{60'000'000'000, 1'000'000});
  Limit limit(20'000'000'000);
  EXPECT_EQ(waiting.until(limit, [&waiting](Look) { return waiting.drivers() > 0; }), End::kReady) << "it only polled";
  EXPECT_TRUE(first.shares_processor());
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace
}  // namespace backplane::shm::test
