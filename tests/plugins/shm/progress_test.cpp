// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "group.hpp"
#include "ranks.hpp"

namespace backplane::shm::test {
namespace {

// A quick poll may miss events that are not signalled again.
TEST(Waiter, PollsFullyBeforeSleepOrTimeout) {
  Doorbell doorbell = {};
  const sdk::Interruption interruption;
  Waiter waiter(doorbell, nullptr, WaitPolicy{20'000, 20'000}, interruption);
  for (const int64_t timeout_ns : {INT64_C(0), INT64_C(10'000), INT64_C(5'000'000)}) {
    Poll last = Poll::kQuick;
    bool has_slept_badly = false;
    const auto ready = [&](Poll look) {
      has_slept_badly = has_slept_badly || (doorbell.sleepers.load() > 0 && look == Poll::kQuick);
      last = look;
      return false;
    };
    LazyDeadline deadline(timeout_ns);
    EXPECT_EQ(waiter.until(deadline, ready), WaitResult::kTimeout);
    EXPECT_EQ(last, Poll::kFull);
    EXPECT_FALSE(has_slept_badly);
  }
}

// A waiter that may yield polls again before it counts as a driver. Otherwise it sleeps at once.
TEST(Waiter, YieldsBeforeItCountsAsADriver) {
  for (const int64_t yield_ns : {INT64_C(0), INT64_C(20'000'000'000)}) {
    Doorbell doorbell = {};
    const sdk::Interruption interruption;
    Waiter waiter(doorbell, nullptr, WaitPolicy{0, yield_ns}, interruption);
    int polls = 0;  // before it is a driver
    const auto ready = [&](Poll) {
      if (waiter.drivers() > 0) return true;
      ++polls;
      return false;
    };
    LazyDeadline deadline(20'000'000'000);
    EXPECT_EQ(waiter.until(deadline, ready), WaitResult::kReady);
    EXPECT_EQ(polls > 1, yield_ns > 0) << polls;
  }
}

// Keeps this thread, and those that it starts, on the processor on which it is.
class OnOneProcessor {
 public:
  OnOneProcessor() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(::sched_getcpu(), &here);
    EXPECT_EQ(::sched_setaffinity(0, sizeof here, &here), 0);
  }
  ~OnOneProcessor() { EXPECT_EQ(::sched_setaffinity(0, sizeof before_, &before_), 0); }
  OnOneProcessor(const OnOneProcessor&) = delete;
  OnOneProcessor& operator=(const OnOneProcessor&) = delete;

 private:
  cpu_set_t before_;
};

// A rank on the processor of another one yields, whatever its spin time.
TEST(Waiter, RanksOnOneProcessorYieldToEachOther) {
  const OnOneProcessor pinned;
  const Memory memory(2);
  Peers first(memory.view, 0, 2);
  Peers second(memory.view, 1, 2);
  ASSERT_TRUE(first.join() && second.join());
  EXPECT_FALSE(first.shares_processor()) << "the other rank has not waited yet";
  const sdk::Interruption interruption;
  Waiter waiter(memory.view.member(1).doorbell, &second, WaitPolicy{60'000'000'000, 1'000'000}, interruption);
  LazyDeadline deadline(20'000'000'000);
  EXPECT_EQ(waiter.until(deadline, [&waiter](Poll) { return waiter.drivers() > 0; }), WaitResult::kReady)
      << "it polled without yielding";
  EXPECT_TRUE(first.shares_processor());
}

// Other threads may be ranks of another group, of which this one knows nothing.
TEST(Waiter, StopsSpinningWhileAnotherThreadWaitsForItsProcessor) {
  const OnOneProcessor pinned;
  std::atomic<bool> stop = false;
  std::thread other([&stop] {  // on the same processor
    while (!stop) sched_yield();
  });
  Doorbell doorbell = {};
  const sdk::Interruption interruption;
  Waiter waiter(doorbell, nullptr, WaitPolicy{60'000'000'000, 1'000'000}, interruption);
  LazyDeadline deadline(20'000'000'000);
  EXPECT_EQ(waiter.until(deadline, [&waiter](Poll) { return waiter.drivers() > 0; }), WaitResult::kReady)
      << "it polled without yielding";
  stop = true;
  other.join();
}

// The union of the affinities counts, even if each rank has one processor or all have the same.
TEST(Waiter, DoesNotSpinIfOversubscribed) {
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
    const WaitPolicy policy = wait_policy_of(options, &peers);
    EXPECT_EQ(policy.yield_ns, 9000);
    return policy.spin_ns;
  };
  EXPECT_EQ(spin_on({1, 2, 4}), 7000);
  EXPECT_EQ(peers.processors(), 3);
  EXPECT_EQ(spin_on({7, 7, 7}), 7000);
  EXPECT_EQ(spin_on({1, 2, UINT64_C(1) << 63}, 15), 7000);
  EXPECT_EQ(spin_on({3, 3, 3}), 0);
  EXPECT_EQ(spin_on({1, 2, 2}), 0);
  EXPECT_EQ(peers.processors(), 2);
  EXPECT_EQ(wait_policy_of(options, nullptr).spin_ns, 7000) << "a group of one";
}

}  // namespace
}  // namespace backplane::shm::test
