// SPDX-License-Identifier: Apache-2.0
//
// Collectives with buffers in heaps and inputs read in processes: correct results, and no staging.
#include <fcntl.h>

#include "rounds.hpp"

namespace backplane::shm::test {
namespace {

void any_rounds(Rank& rank) {
  std::mt19937_64 same(5);
  std::mt19937_64 own(static_cast<uint64_t>(rank.id));
  for (uint64_t round = 0; round < 30 * kEffort && !testing::Test::HasFatalFailure(); ++round) {
    const uint64_t max_count = 1 + same() % (same() % 3 == 0 ? 40'000 : 1'500);
    const Placement placement = same() % 3 == 0 ? Placement::kHeap : Placement::kAny;
    yield_sometimes(own);
    CollectiveRound(rank, round, max_count, placement, own).run(kKinds[same() % std::size(kKinds)]);
  }
}

TEST(ZeroCopy, AnyBufferInAnyCollective) {
  for (const int32_t ranks : {2, 3, 5}) {
    for (const int64_t spin_ns : {20'000, 0}) on_heaps(ranks, WaitPolicy{spin_ns, 200'000}, any_rounds);
  }
}

// Staged and exposed, at the sizes where the root reduces, and where nothing is exposed to it.
TEST(ZeroCopy, AnyBufferInReductionsOfTwoRanks) {
  on_heaps(2, WaitPolicy{20'000, 200'000}, [](Rank& rank) {
    std::mt19937_64 own(static_cast<uint64_t>(rank.id));
    for (uint64_t round = 0; round < 16 && !testing::Test::HasFatalFailure(); ++round) {
      const Placement placement = std::array{Placement::kAny, Placement::kHeap, Placement::kOrdinary}[round / 2 % 3];
      CollectiveRound(rank, round, std::array{32'000, 33'001, 70'000, 300'000}[round / 4], placement, own)
          .run(BP_REDUCE);
    }
  });
}

TEST(ZeroCopy, AnyBufferWithCma) {
  for (const Cma cma : {Cma::kOn, Cma::kAuto}) {
    for (const int32_t ranks : {2, 3}) {
      for (const int64_t spin_ns : {20'000, 0}) on_heaps(ranks, WaitPolicy{spin_ns, 200'000}, any_rounds, cma);
    }
  }
}

TEST(ZeroCopy, AnyBufferIfOneRankCannotReadProcesses) {
  if (!may_forbid_reading()) GTEST_SKIP() << "there is no seccomp";
  on_heaps(
      3, WaitPolicy{20'000, 200'000},
      [](Rank& rank) {
        EXPECT_TRUE(rank.id != 1 || forbid_reading());
        any_rounds(rank);
      },
      Cma::kOn);
}

// A rank that reads nothing need not map heaps; here it could not.
TEST(ZeroCopy, RanksThatReadNothingMapNothing) {
  constexpr int32_t kRanks = 3;
  Shared shared(kRanks);
  shared.pools[1] = Pools(std::make_shared<Heaps>(sdk::Descriptor(::open("/dev/null", O_RDONLY)), 0, kHeap, 1, kRanks));
  run_ranks(
      Memory(kRanks), kRanks, WaitPolicy{20'000, 200'000},
      [](Rank& rank) {
        const uint64_t count = 50'000;
        const Buffer input(rank, count, rank.id != 1);
        const Buffer output(rank, rank.id == 0 ? count * kRanks : 0, false);
        std::fill(input.numbers.begin(), input.numbers.end(), static_cast<uint32_t>(rank.id));
        bp_op op = {};
        op.struct_size = sizeof op;
        op.kind = BP_GATHER;
        op.dtype = BP_U32;
        op.input = {input.numbers.data(), count, BP_HOST, 0};
        op.output = {output.numbers.data(), output.numbers.size(), BP_HOST, 0};
        LazyDeadline deadline(Rank::kLong);
        rank.collectives.run(op, deadline);
        for (uint64_t i = 0; i < output.numbers.size(); ++i) ASSERT_EQ(output.numbers[i], i / count);
      },
      shared.pools);
}

// Up to 4 KiB of all blocks together there is no final step, wherever the buffers are.
TEST(ZeroCopy, SmallBuffersAreNotExposed) {
  constexpr int32_t kRanks = 2;
  constexpr uint64_t kNumbers = 1024;
  for (const uint32_t kind : {BP_BROADCAST, BP_GATHER, BP_SCATTER, BP_ALL_GATHER, BP_ALL_TO_ALL}) {
    const uint64_t blocks = kind == BP_SCATTER || kind == BP_ALL_TO_ALL ? kRanks : 1;
    for (const uint64_t more : {0, 1}) {
      const Shared shared(kRanks);
      const Memory memory(kRanks);
      run_ranks(
          memory, kRanks, WaitPolicy{20'000, 200'000},
          [kind, count = kNumbers / blocks + more](Rank& rank) {
            std::mt19937_64 own(1);
            CollectiveRound(rank, 0, count, Placement::kHeap, own).run(kind);
          },
          shared.pools);
      for (int32_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(memory.view.line(rank, 1).step.load(), 1U) << "kind " << kind;
        EXPECT_EQ(memory.view.line(rank, 2).step.load(), more == 0 ? 0U : 2U) << "kind " << kind;
      }
    }
  }
}

// With all buffers in heaps no data pass through slots; for some operations lists of locations do.
TEST(ZeroCopy, HeapBuffersAreNotStaged) {
  constexpr int32_t kRanks = 3;
  for (const uint32_t kind : kKinds) {
    const Shared shared(kRanks);
    const Memory memory(kRanks);
    run_ranks(
        memory, kRanks, WaitPolicy{20'000, 200'000},
        [kind](Rank& rank) {
          std::mt19937_64 own(1);
          for (uint64_t round = 0; round < 4; ++round)
            CollectiveRound(rank, round, 50'000, Placement::kHeap, own).run(kind);
        },
        shared.pools);
    const uint64_t bytes = written(memory.view.slot(0, 0), kRanks * kSteps * kSlotSize);
    // Results of reduce reach the root through slots.
    const uint64_t max_count = kind == BP_REDUCE ? kRanks * kSteps * kSlotSize / kRanks : kRanks * kSteps * kRanks * 16;
    EXPECT_LE(bytes, max_count) << "kind " << kind;
  }
}

// The same for ordinary memory read in processes.
TEST(ZeroCopy, InputsReadInProcessesAreNotStaged) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  constexpr int32_t kRanks = 3;
  for (const uint32_t kind :
       {BP_GATHER, BP_GATHERV, BP_SCATTER, BP_SCATTERV, BP_ALL_GATHER, BP_ALL_GATHERV, BP_ALL_TO_ALL, BP_ALL_TO_ALLV}) {
    const Memory memory(kRanks);
    std::byte* const slots = memory.view.slot(0, 0);
    run_ranks(
        memory, kRanks, WaitPolicy{20'000, 200'000},
        [kind](Rank& rank) {
          std::mt19937_64 own(1);
          for (uint64_t round = 0; round < kRanks; ++round)
            CollectiveRound(rank, round, 50'000, Placement::kOrdinary, own).run(kind);
        },
        {}, Cma::kOn);
    EXPECT_LE(written(slots, kRanks * kSteps * kSlotSize), kRanks * kSteps * kRanks * 16) << "kind " << kind;
  }
}

// A block is read only with the count of its owner.
TEST(ZeroCopy, RejectsDifferentCounts) {
  on_heaps(2, WaitPolicy{20'000, 200'000}, [](Rank& rank) {
    const uint64_t counts[] = {kBlockCount, kBlockCount};
    const uint64_t displs[] = {0, kBlockCount};
    const Buffer input(rank, 2 * kBlockCount, true);
    const Buffer output(rank, kBlockCount + 1, true);
    bp_op op = {};
    op.struct_size = sizeof op;
    op.kind = BP_SCATTERV;
    op.dtype = BP_U32;
    op.input = {input.numbers.data(), rank.id == 0 ? input.numbers.size() : 0, BP_HOST, 0};
    op.output = {output.numbers.data(), kBlockCount + (rank.id == 0 ? 0U : 1U), BP_HOST, 0};
    if (rank.id == 0) op.in_counts = counts, op.in_displs = displs;
    LazyDeadline deadline(Rank::kLong);
    try {
      rank.collectives.run(op, deadline);
      ADD_FAILURE() << "rank " << rank.id << " did not detect the difference";
    } catch (const sdk::Failure& why) {
      EXPECT_EQ(why.peer_rank(), 1 - rank.id) << why.what();
      if (rank.id == 0) return;
      EXPECT_EQ(why.status(), BP_INVALID) << why.what();
      rank.peers.abort(why);
    }
  });
}

// A list may hold addresses in the process although the line holds a heap location.
TEST(ZeroCopy, ForgedListsAreReadInTheProcess) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  const Memory memory(2);
  const Shared shared(2);
  Rank honest(memory.view, 0, 2, WaitPolicy{20'000, 0}, &shared.pools[0], Cma::kOn);
  Rank forger(memory.view, 1, 2, WaitPolicy{20'000, 0}, &shared.pools[1], Cma::kOn);
  const uint64_t one[2] = {10'000, 10'000};
  const uint64_t displs[2] = {0, 10'000};
  std::thread other([&memory, &forger] {
    // The ranks agree on the number of pieces, meet, and agree that all can read.
    for (const uint32_t step : {1U, 2U, 3U, 4U}) {
      await_step(memory.view, 0, step);
      Line& line = memory.view.line(1, step);
      line.digest = memory.view.line(0, step).digest;
      const uint64_t value = step == 1 ? 40'000 : step == 3 ? 0 : 1;
      std::memcpy(line.data.data(), &value, sizeof value);
      const uint64_t list[4] = {kInProcess | 4096, 40'000, kInProcess | 4096, 40'000};
      std::memcpy(memory.view.slot(1, step), list, sizeof list);
      line.step.store(step);
      forger.peers.wake(0);
    }
  });
  std::vector<uint32_t> in(20'000);
  std::vector<uint32_t> out(20'000);
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = BP_ALL_TO_ALLV;
  op.dtype = BP_U32;
  op.input = {in.data(), in.size(), BP_HOST, 0};
  op.output = {out.data(), out.size(), BP_HOST, 0};
  op.in_counts = op.out_counts = one;
  op.in_displs = op.out_displs = displs;
  LazyDeadline deadline(Rank::kLong);
  std::string text;
  EXPECT_EQ(status_of([&] { honest.collectives.run(op, deadline); }, &text), BP_INVALID);
  EXPECT_NE(text.find("the input of rank 1 cannot be read in its process"), std::string::npos) << text;
  other.join();
}

// The failure of a rank to which another announces this address in its process, after that one failed or not.
int32_t failure_of_reading(uint32_t kind, uint64_t address, bool has_failed) {
  const Memory memory(2);
  Rank honest(memory.view, 0, 2, WaitPolicy{20'000, 0}, nullptr, Cma::kOn);
  Rank forger(memory.view, 1, 2, WaitPolicy{20'000, 0}, nullptr, Cma::kOn);
  std::thread other([&memory, &forger, kind, address, has_failed] {
    const uint32_t last = kind == BP_ALL_REDUCE ? 1 : 3;  // in the first two the ranks agree that all can read
    for (uint32_t step = 1; step <= last; ++step) {
      await_step(memory.view, 0, step);
      Line& line = memory.view.line(1, step);
      line.digest = memory.view.line(0, step).digest;
      const uint64_t value = step == last ? kInProcess | address : 0;
      std::memcpy(line.data.data(), &value, sizeof value);
      if (step == last && has_failed) forger.peers.mark_collective_failed();
      line.step.store(step);
      forger.peers.wake(0);
    }
  });
  std::vector<uint32_t> in(kind == BP_ALL_REDUCE ? 20'000 : 10'000);
  std::vector<uint32_t> out(20'000);
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = kind;
  op.root = kind == BP_SCATTER ? 1 : 0;
  op.dtype = BP_U32;
  op.input = {in.data(), in.size(), BP_HOST, 0};
  op.output = {out.data(), out.size(), BP_HOST, 0};
  LazyDeadline deadline(Rank::kLong);
  int32_t status = BP_OK;
  try {
    honest.collectives.run(op, deadline);
  } catch (const sdk::Failure& why) {
    status = why.status();
    EXPECT_EQ(why.peer_rank(), 1);
  }
  other.join();
  return status;
}

// Unreadable addresses fail, and so do addresses in collectives that read no process.
TEST(ZeroCopy, RejectsForgedAddresses) {
  for (const uint64_t address : {UINT64_C(0), UINT64_C(4096)}) {
    for (const uint32_t kind : {BP_ALL_GATHER, BP_ALL_REDUCE, BP_SCATTER}) {
      EXPECT_EQ(failure_of_reading(kind, address, false), BP_INVALID) << kind << " at " << address;
    }
  }
}

// Its memory may have been freed.
TEST(ZeroCopy, FailedRankIsLostWhenItsProcessIsRead) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (const uint32_t kind : {BP_ALL_GATHER, BP_SCATTER}) EXPECT_EQ(failure_of_reading(kind, 4096, true), BP_PEER_LOST);
}

}  // namespace
}  // namespace backplane::shm::test
