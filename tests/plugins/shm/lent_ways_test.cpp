// SPDX-License-Identifier: Apache-2.0
//
// Where inputs are read in processes if that was faster: which ranks do so, and when they have made up their minds.
#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "rounds.hpp"

namespace backplane::shm::test {
namespace {

constexpr uint32_t kFirst = 2 * Trial::kInARow;                   // tries; more follow if they do not decide
constexpr uint32_t kMost = 2 * (Trial::kInARow + Trial::kTries);  // in a crowd; in others fewer
constexpr Patience kPolls = {20'000, 200'000};
constexpr Patience kCrowd = {0, 200'000};

// What that rank does in a collective of its own thread's: does it lend its input in its process?
template <typename Body>
bool lends_there(const View& view, int32_t rank, const Body& body) {
  uint32_t first = 1;  // its step
  for (uint32_t step = 0; step < kSteps; ++step) first = std::max(first, view.line(rank, step).step.load() + 1);
  body();
  uint64_t place = 0;
  std::memcpy(&place, view.line(rank, first).data.data(), sizeof place);
  return is_in_process(place);
}

struct Ways {
  std::vector<bool> lent[3];  // by rank: in each collective but the first
  std::vector<std::pair<int32_t, std::string>> told;
};

// One collective of `first`, then of `kind` as many as it takes to decide, and some more.
Ways ways_of(uint32_t first, uint32_t kind, uint64_t root, const Patience& patience) {
  const Memory memory(3);
  Ways ways;
  std::mutex mutex;
  run_ranks(
      memory, 3, patience,
      [first, kind, root, &memory, &ways](Rank& rank) {
        std::mt19937_64 own(1);
        Round(rank, root, kSome, Where::kOrdinary, own).run(first);
        for (uint64_t i = 1; i <= kMost + 8 && !testing::Test::HasFatalFailure(); ++i) {
          Round round(rank, root + 3 * i, kSome, Where::kOrdinary, own);
          const bool lent = lends_there(memory.view, rank.id, [&round, kind] { round.run(kind); });
          ways.lent[rank.id].push_back(lent);
        }
      },
      {}, Cma::kAuto,
      [&ways, &mutex](int32_t rank, const std::string& text) {
        const std::lock_guard lock(mutex);
        ways.told.emplace_back(rank, text);
      });
  return ways;
}

// Also after a collective in which only one of them has heard that all can read.
TEST(Lent, RanksDecideAlike) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (const uint32_t kind : {BP_ALL_GATHER, BP_GATHER, BP_ALL_TO_ALL}) {
    for (const uint32_t first : {static_cast<uint32_t>(BP_SCATTER), kind}) {
      for (const Patience& patience : {kPolls, kCrowd}) {
        const Ways ways = ways_of(first, kind, 1, patience);
        EXPECT_EQ(ways.lent[1], ways.lent[0]) << "kind " << kind << " after " << first;
        EXPECT_EQ(ways.lent[2], ways.lent[0]) << "kind " << kind << " after " << first;
        EXPECT_EQ(std::count(ways.lent[0].begin(), ways.lent[0].begin() + kFirst + 1, true), Trial::kInARow);
        ASSERT_EQ(ways.told.size(), 1U);
        EXPECT_EQ(ways.told[0].first, 0);
      }
    }
  }
}

TEST(Lent, TheRootDecidesForItself) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  const Ways ways = ways_of(BP_SCATTER, BP_SCATTER, 1, kPolls);
  const std::vector<bool>& root = ways.lent[1];
  EXPECT_EQ(std::count(root.begin(), root.begin() + kFirst, true), Trial::kInARow);
  ASSERT_EQ(ways.told.size(), 1U);
  EXPECT_EQ(ways.told[0].first, 1);
  const bool reads = ways.told[0].second.find("read where they lie") != std::string::npos;
  EXPECT_EQ(std::count(root.begin() + kMost, root.end(), reads), 8) << ways.told[0].second;
  EXPECT_EQ(std::count(ways.lent[0].begin(), ways.lent[0].end(), true), 0);
}

// With more ranks than processors what others do takes a rank's time, and so counts.
TEST(Lent, ACrowdTriesBothWaysToTheirEnd) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (const uint32_t kind : {BP_SCATTER, BP_GATHER}) {
    std::atomic<uint64_t> slowest_at = 0;
    run_ranks(
        Memory(3), 3, kCrowd,
        [kind, &slowest_at](Rank& rank) {
          std::mt19937_64 own(1);
          for (uint64_t i = 1; i <= kFirst && !testing::Test::HasFatalFailure(); ++i) {
            for (int turn = 0; rank.id == 1 && turn < 1000; ++turn) sched_yield();
            if (rank.id == 1) slowest_at = i;
            Round(rank, 3 * i, kSome, Where::kOrdinary, own).run(kind);  // its root is rank 0
            if (i > 1) {                                                 // then they know that all can read
              EXPECT_GE(slowest_at, i) << "rank " << rank.id << ", kind " << kind;
            }
          }
        },
        {}, Cma::kAuto);
  }
}

// So that the first rank has decided as soon if each scatter has another root; then others have fewer to learn from, in
// the end their own.
TEST(Lent, ACrowdDecidesWhoeverIsTheRoot) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  std::atomic<int> told = 0;
  run_ranks(
      Memory(3), 3, kCrowd,
      [&told](Rank& rank) {
        std::mt19937_64 own(1);
        for (uint64_t i = 0; i < 3 * kMost + 6 && !testing::Test::HasFatalFailure(); ++i) {
          Round(rank, i, kSome, Where::kOrdinary, own).run(BP_SCATTER);
          if (i == kMost + 6) {
            EXPECT_GE(told, 1);
          }
        }
      },
      {}, Cma::kAuto, [&told](int32_t, const std::string&) { ++told; });
  EXPECT_EQ(told, 3);
}

// Where one rank can never read, the root of a scatter does not wait for it in each of them.
TEST(Lent, TheRootAsksNotForEver) {
  if (!may_read() || !may_forbid_reading())
    GTEST_SKIP() << "process_vm_readv is forbidden here, or there is no seccomp";
  std::atomic<bool> is_done = false;
  run_ranks(
      Memory(3), 3, kPolls,
      [&is_done](Rank& rank) {
        EXPECT_TRUE(rank.id != 1 || forbid_reading());
        std::mt19937_64 own(1);
        for (uint64_t i = 0; i < kSteps; ++i) Round(rank, 3 * i, kSome, Where::kOrdinary, own).run(BP_SCATTER);
        all_meet(rank);
        while (rank.id == 1 && !is_done && !testing::Test::HasFailure()) sched_yield();
        Round(rank, 3 * kSteps, kSome, Where::kOrdinary, own).run(BP_SCATTER);
        if (rank.id == 0) is_done = true;
      },
      {}, Cma::kOn);
}

}  // namespace
}  // namespace backplane::shm::test
