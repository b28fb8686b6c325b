// SPDX-License-Identifier: Apache-2.0
//
// The decision whether inputs are read in processes: which ranks decide, and when.
#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "rounds.hpp"

namespace backplane::shm::test {
namespace {

constexpr uint32_t kFirst = 2 * CopyTuner::kPerTurn;  // tries; more follow if they are inconclusive
constexpr uint32_t kMaxTries =
    2 * (CopyTuner::kPerTurn + CopyTuner::kTries);  // with more ranks than processors; otherwise fewer
constexpr WaitPolicy kPolls = {20'000, 200'000};
constexpr WaitPolicy kOversubscribed = {0, 200'000};

// Runs a collective of a rank. Returns whether the rank exposed its input in its process.
template <typename Body>
bool exposes_in_process(const View& view, int32_t rank, const Body& body) {
  uint32_t first = 1;  // its step
  for (uint32_t step = 0; step < kSteps; ++step) first = std::max(first, view.line(rank, step).step.load() + 1);
  body();
  uint64_t location = 0;
  std::memcpy(&location, view.line(rank, first).data.data(), sizeof location);
  return is_in_process(location);
}

struct Decisions {
  std::vector<bool> exposed[3];  // by rank, for each collective but the first
  std::vector<std::pair<int32_t, std::string>> logged;
};

// One collective of `first`, then of `kind` until decided, and some more.
Decisions decisions_of(uint32_t first, uint32_t kind, uint64_t root, const WaitPolicy& policy) {
  const Memory memory(3);
  Decisions decisions;
  std::mutex mutex;
  run_ranks(
      memory, 3, policy,
      [first, kind, root, &memory, &decisions](Rank& rank) {
        std::mt19937_64 own(1);
        CollectiveRound(rank, root, kBlockCount, Placement::kOrdinary, own).run(first);
        for (uint64_t i = 1; i <= kMaxTries + 8 && !testing::Test::HasFatalFailure(); ++i) {
          CollectiveRound round(rank, root + 3 * i, kBlockCount, Placement::kOrdinary, own);
          const bool exposed = exposes_in_process(memory.view, rank.id, [&round, kind] { round.run(kind); });
          decisions.exposed[rank.id].push_back(exposed);
        }
      },
      {}, Cma::kAuto,
      [&decisions, &mutex](int32_t rank, const std::string& text) {
        const std::lock_guard lock(mutex);
        decisions.logged.emplace_back(rank, text);
      });
  return decisions;
}

// Even if only one rank has learned before that all can read.
TEST(ZeroCopy, RanksDecideAlike) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (const uint32_t kind : {BP_ALL_GATHER, BP_GATHER, BP_ALL_TO_ALL}) {
    for (const uint32_t first : {static_cast<uint32_t>(BP_SCATTER), kind}) {
      for (const WaitPolicy& policy : {kPolls, kOversubscribed}) {
        const Decisions decisions = decisions_of(first, kind, 1, policy);
        EXPECT_EQ(decisions.exposed[1], decisions.exposed[0]) << "kind " << kind << " after " << first;
        EXPECT_EQ(decisions.exposed[2], decisions.exposed[0]) << "kind " << kind << " after " << first;
        EXPECT_EQ(std::count(decisions.exposed[0].begin(), decisions.exposed[0].begin() + kFirst + 1, true),
                  CopyTuner::kPerTurn);
        ASSERT_EQ(decisions.logged.size(), 1U);
        EXPECT_EQ(decisions.logged[0].first, 0);
      }
    }
  }
}

TEST(ZeroCopy, RootDecidesAlone) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  const Decisions decisions = decisions_of(BP_SCATTER, BP_SCATTER, 1, kPolls);
  const std::vector<bool>& root = decisions.exposed[1];
  EXPECT_EQ(std::count(root.begin(), root.begin() + kFirst, true), CopyTuner::kPerTurn);
  ASSERT_EQ(decisions.logged.size(), 1U);
  EXPECT_EQ(decisions.logged[0].first, 1);
  const bool reads = decisions.logged[0].second.find("read in place") != std::string::npos;
  EXPECT_EQ(std::count(root.begin() + kMaxTries, root.end(), reads), 8) << decisions.logged[0].second;
  EXPECT_EQ(std::count(decisions.exposed[0].begin(), decisions.exposed[0].end(), true), 0);
}

// With more ranks than processors the work of all ranks counts, because it takes time from each.
TEST(ZeroCopy, OversubscribedRanksTryBothWaysFully) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (const uint32_t kind : {BP_SCATTER, BP_GATHER}) {
    std::atomic<uint64_t> slowest_at = 0;
    run_ranks(
        Memory(3), 3, kOversubscribed,
        [kind, &slowest_at](Rank& rank) {
          std::mt19937_64 own(1);
          for (uint64_t i = 1; i <= kFirst && !testing::Test::HasFatalFailure(); ++i) {
            for (int turn = 0; rank.id == 1 && turn < 1000; ++turn) sched_yield();
            if (rank.id == 1) slowest_at = i;
            CollectiveRound(rank, 3 * i, kBlockCount, Placement::kOrdinary, own).run(kind);  // with root 0
            if (i > 1) {  // all ranks know that all can read
              EXPECT_GE(slowest_at, i) << "rank " << rank.id << ", kind " << kind;
            }
          }
        },
        {}, Cma::kAuto);
  }
}

// If the root changes, the first rank decides after as many scatters.
TEST(ZeroCopy, OversubscribedRanksDecideWithAnyRoot) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  std::atomic<int> logged = 0;
  run_ranks(
      Memory(3), 3, kOversubscribed,
      [&logged](Rank& rank) {
        std::mt19937_64 own(1);
        for (uint64_t i = 0; i < 3 * kMaxTries + 6 && !testing::Test::HasFatalFailure(); ++i) {
          CollectiveRound(rank, i, kBlockCount, Placement::kOrdinary, own).run(BP_SCATTER);
          if (i == kMaxTries + 6) {
            EXPECT_GE(logged, 1);
          }
        }
      },
      {}, Cma::kAuto, [&logged](int32_t, const std::string&) { ++logged; });
  EXPECT_EQ(logged, 3);
}

// The root does not wait in every scatter for a rank that can never read.
TEST(ZeroCopy, RootStopsCollectingReaders) {
  if (!may_read() || !may_forbid_reading())
    GTEST_SKIP() << "process_vm_readv is forbidden here, or there is no seccomp";
  std::atomic<bool> is_done = false;
  run_ranks(
      Memory(3), 3, kPolls,
      [&is_done](Rank& rank) {
        EXPECT_TRUE(rank.id != 1 || forbid_reading());
        std::mt19937_64 own(1);
        for (uint64_t i = 0; i < kSteps; ++i)
          CollectiveRound(rank, 3 * i, kBlockCount, Placement::kOrdinary, own).run(BP_SCATTER);
        all_barrier(rank);
        while (rank.id == 1 && !is_done && !testing::Test::HasFailure()) sched_yield();
        CollectiveRound(rank, 3 * kSteps, kBlockCount, Placement::kOrdinary, own).run(BP_SCATTER);
        if (rank.id == 0) is_done = true;
      },
      {}, Cma::kOn);
}

}  // namespace
}  // namespace backplane::shm::test
