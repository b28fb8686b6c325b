// SPDX-License-Identifier: Apache-2.0
//
// The decision whether inputs are read in processes: the ranks agree on it once.
#include <mutex>
#include <string>
#include <utility>

#include "rounds.hpp"

namespace backplane::shm::test {
namespace {

constexpr WaitPolicy kPolls = {20'000, 200'000};
constexpr WaitPolicy kOversubscribed = {0, 200'000};
constexpr uint32_t kAgreement = 2;   // steps
constexpr uint64_t kRead = 20'000;   // elements of blocks that are read in either case
constexpr uint64_t kShort = 5'000;   // that are staged with more ranks than processors
constexpr uint64_t kStaged = 2'000;  // that are always staged

uint32_t last_step(const View& view, int32_t rank) {
  uint32_t last = 0;
  for (uint32_t step = 0; step < kSteps; ++step) last = std::max(last, view.line(rank, step).step.load());
  return last;
}

struct Decisions {
  std::vector<bool> exposed[3];  // by rank, for each collective: the input, in its process
  std::vector<uint32_t> steps;   // of rank 0, for each collective
  std::vector<std::pair<int32_t, std::string>> logged;
};

// Collectives of `kind` with blocks of these counts and root 1. Rank `unable` cannot read processes.
Decisions decisions_of(uint32_t kind, const WaitPolicy& policy, const std::vector<uint64_t>& counts,
                       int32_t unable = -1) {
  const Memory memory(3);
  Decisions decisions;
  std::mutex mutex;
  const auto run = [kind, unable, &counts, &memory, &decisions](Rank& rank) {
    if (rank.id == unable) {
      EXPECT_TRUE(forbid_reading());
    }
    std::mt19937_64 own(1);
    bool has_agreed = false;
    for (const uint64_t count : counts) {
      const bool agrees = !has_agreed && count * sizeof(uint32_t) > kEagerLimit;
      const uint32_t before = last_step(memory.view, rank.id);
      CollectiveRound(rank, 1, count, Placement::kOrdinary, own).run(kind);
      uint64_t location = 0;
      const Line& line = memory.view.line(rank.id, before + 1 + (agrees ? kAgreement : 0));
      std::memcpy(&location, line.data.data(), sizeof location);
      decisions.exposed[rank.id].push_back(is_in_process(location));
      if (rank.id == 0) decisions.steps.push_back(last_step(memory.view, 0) - before);
      has_agreed = has_agreed || agrees;
    }
  };
  run_ranks(memory, 3, policy, run, {}, Cma::kAuto, [&decisions, &mutex](int32_t rank, const std::string& text) {
    const std::lock_guard lock(mutex);
    decisions.logged.emplace_back(rank, text);
  });
  return decisions;
}

constexpr uint32_t kReadable[] = {BP_GATHER, BP_SCATTER, BP_ALL_GATHER, BP_ALL_TO_ALL};

bool publishes(uint32_t kind, int32_t rank) { return kind != BP_SCATTER || rank == 1; }

TEST(ZeroCopy, LongBlocksAreReadInProcesses) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (const uint32_t kind : kReadable) {
    for (const bool spins : {true, false}) {
      const Decisions decisions = decisions_of(kind, spins ? kPolls : kOversubscribed, {kStaged, kRead, kShort, kRead});
      for (int32_t rank = 0; rank < 3; ++rank) {
        const bool is_read = publishes(kind, rank);
        EXPECT_EQ(decisions.exposed[rank], (std::vector<bool>{false, is_read, is_read && spins, is_read}))
            << "kind " << kind << ", rank " << rank;
      }
      EXPECT_EQ(decisions.logged.size(), 0U);
    }
  }
}

TEST(ZeroCopy, RanksAgreeOnce) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (const uint32_t kind : kReadable) {
    const std::vector<uint32_t> steps = decisions_of(kind, kPolls, {kRead, kRead, kRead}).steps;
    EXPECT_EQ(steps[0], steps[1] + kAgreement) << "kind " << kind;
    EXPECT_EQ(steps[1], steps[2]) << "kind " << kind;
  }
}

// One rank that cannot read the others keeps all from exposing, and says why.
TEST(ZeroCopy, OneRankThatCannotReadDecidesForAll) {
  if (!may_read() || !may_forbid_reading())
    GTEST_SKIP() << "process_vm_readv is forbidden here, or there is no seccomp";
  for (const uint32_t kind : kReadable) {
    for (const WaitPolicy& policy : {kPolls, kOversubscribed}) {
      const Decisions decisions = decisions_of(kind, policy, {kRead, kRead}, 2);
      for (const std::vector<bool>& exposed : decisions.exposed) EXPECT_EQ(exposed, (std::vector<bool>{false, false}));
      ASSERT_EQ(decisions.logged.size(), 1U) << "kind " << kind;
      EXPECT_EQ(decisions.logged[0].first, 2);
      EXPECT_NE(decisions.logged[0].second.find("Operation not permitted"), std::string::npos)
          << decisions.logged[0].second;
    }
  }
}

}  // namespace
}  // namespace backplane::shm::test
