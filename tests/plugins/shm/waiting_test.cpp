// SPDX-License-Identifier: Apache-2.0
#include "waiting.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include "fabric.hpp"
#include "group.hpp"

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

// Only who may yield looks again before it says that it waits; who may not sleeps at once.
TEST(Waiting, YieldsBeforeItCountsAsADriverOrSleepsAtOnce) {
  for (const int64_t yield_ns : {INT64_C(0), INT64_C(20'000'000'000)}) {
    Bell bell = {};
    Waiting waiting(bell, nullptr, Patience{0, yield_ns});
    int looks = 0;  // before it is a driver
    const auto ready = [&](Look) {
      if (waiting.drivers() > 0) return true;
      ++looks;
      return false;
    };
    Limit limit(20'000'000'000);
    EXPECT_EQ(waiting.until(limit, ready), End::kReady);
    EXPECT_EQ(looks > 1, yield_ns > 0) << looks;
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

// The union of what the ranks may run on counts: also if each may run on one processor only, or all on the same ones.
TEST(Waiting, NobodyPollsIfRanksOutnumberProcessors) {
  constexpr int32_t kRanks = 3;
  const bp_key_value values[] = {{"spin", "7000"}, {"yield", "9000"}};
  const sdk::Options options(values, 2);
  const Memory memory(kRanks);
  const Peers peers(memory.view, 0, kRanks);
  const auto spin_on = [&](const std::array<uint64_t, kRanks>& masks, size_t word = 0) {
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      memory.view.member(rank).cpus = {};
      memory.view.member(rank).cpus[word] = masks[static_cast<size_t>(rank)];
    }
    const Patience patience = patience_of(options, &peers);
    EXPECT_EQ(patience.yield_ns, 9000);
    return patience.spin_ns;
  };
  EXPECT_EQ(spin_on({1, 2, 4}), 7000);
  EXPECT_EQ(peers.processors(), 3);
  EXPECT_EQ(spin_on({7, 7, 7}), 7000);
  EXPECT_EQ(spin_on({1, 2, UINT64_C(1) << 63}, 15), 7000);
  EXPECT_EQ(spin_on({3, 3, 3}), 0);
  EXPECT_EQ(spin_on({1, 2, 2}), 0);
  EXPECT_EQ(peers.processors(), 2);
  EXPECT_EQ(patience_of(options, nullptr).spin_ns, 7000) << "a group of one";
}

}  // namespace
}  // namespace backplane::shm::test
