// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "group.hpp"
#include "rounds.hpp"

namespace backplane::shm::test {
namespace {

void run_once(Rank& rank, uint32_t kind, std::vector<uint32_t>& in, std::vector<uint32_t>& out) {
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = kind;
  op.dtype = BP_U32;
  op.input = {in.data(), in.size(), BP_HOST, 0};
  op.output = {out.data(), out.size(), BP_HOST, 0};
  LazyDeadline deadline(Rank::kLong);
  rank.collectives.run(op, deadline);
}

// Each kind with varying roots, and sizes for a line, one step and several steps.
void all_kinds(Rank& rank, uint64_t rounds) {
  constexpr uint64_t kTurns = std::size(kKinds) + 1;  // including a barrier
  constexpr uint64_t kMost[] = {1, 8, 30, 31, 3000, 20'000, 60'000};
  std::mt19937_64 same(7);  // the same on all ranks
  std::mt19937_64 own(static_cast<uint64_t>(rank.id));
  for (uint64_t round = 0; round < rounds && !testing::Test::HasFatalFailure(); ++round) {
    const uint64_t max_count = kMost[same() % 7];
    const uint64_t count = same() % (max_count + 1);
    yield_sometimes(own);
    const uint64_t turn = (round + round / kTurns) % kTurns;
    if (turn < std::size(kKinds)) {
      CollectiveRound(rank, round, count, Placement::kAny, own).run(kKinds[turn]);
    } else {
      all_barrier(rank);
    }
  }
}

TEST(Collectives, ManyInSequence) {
  for (const int32_t ranks : {2, 3, 5}) {
    on_ranks(ranks, WaitPolicy{20'000, 200'000}, [](Rank& rank) { all_kinds(rank, 60 * kEffort); });
  }
}

// The size per block that fits into a line or slot depends on the number of ranks.
TEST(Collectives, ManyInSequenceWithManyRanks) {
  on_ranks(8, WaitPolicy{20'000, 200'000}, [](Rank& rank) { all_kinds(rank, 20 * kEffort); });
}

TEST(Collectives, ManyInSequenceSleeping) {
  on_ranks(3, WaitPolicy{0, 0}, [](Rank& rank) { all_kinds(rank, 20 * kEffort); });
}

// Many full slots, and more than one part of a zero-copy read (4 MiB); smaller under ThreadSanitizer, which records an
// event per element.
TEST(Collectives, Large) {
  constexpr uint64_t kMany = kEffort == 1 ? 300'000 : 1'100'000;
  on_heaps(3, WaitPolicy{20'000, 200'000}, [](Rank& rank) {
    std::mt19937_64 own(1);
    uint64_t round = 0;
    for (const Placement placement : {Placement::kOrdinary, Placement::kHeap}) {
      for (const uint32_t kind : {BP_ALL_REDUCE, BP_BROADCAST})
        CollectiveRound(rank, round++, kMany, placement, own).run(kind);
    }
  });
}

// Rounds of one step in which the runner reads nothing, so that only the reuse of slots limits it. The held rank
// sometimes waits until the runner is as far ahead as allowed, and checks that it goes no further.
void run_ahead(Rank& rank, uint32_t kind, int32_t runner, int32_t probed, std::atomic<uint64_t>& done) {
  constexpr uint64_t kRounds = 200;
  std::mt19937_64 own(1);
  for (uint64_t round = 0; round < kRounds && !testing::Test::HasFatalFailure(); ++round) {
    if (rank.id == probed && round % 23 == 7) {
      const uint64_t max_count = round + Steps::kLag;
      while (done.load() < std::min(max_count, kRounds) && !testing::Test::HasFailure()) sched_yield();
      for (int i = 0; i < 20; ++i) sched_yield();
      ASSERT_LE(done.load(), max_count) << "rank " << runner << " reuses slots that rank " << probed << " may yet read";
    }
    const uint64_t number = round * static_cast<uint64_t>(rank.size);  // with root 0
    CollectiveRound(rank, number, 1 + round * 7 % 30, Placement::kOrdinary, own).run(kind);
    if (rank.id == runner) done.store(round + 1);
  }
}

TEST(Collectives, SlotsAreReusedOnlyAfterAllHaveReadThem) {
  for (const int32_t ranks : {2, 3, 5}) {
    std::atomic<uint64_t> done = 0;
    run_ranks(Memory(ranks), ranks, WaitPolicy{20'000, 200'000},
              [&done, ranks](Rank& rank) { run_ahead(rank, BP_BROADCAST, 0, ranks - 1, done); });
    done = 0;
    run_ranks(Memory(ranks), ranks, WaitPolicy{20'000, 200'000},
              [&done](Rank& rank) { run_ahead(rank, BP_GATHER, 1, 0, done); });
  }
}

// An impossible block size is rejected before it is used in sums.
TEST(Collectives, RejectsImpossibleSizes) {
  on_ranks(2, WaitPolicy{20'000, 0}, [](Rank& rank) {
    uint32_t one = 1;
    std::vector<uint32_t> all(2);
    const uint64_t counts[] = {1, 1};
    const uint64_t displs[] = {0, 1};
    bp_op op = {};
    op.struct_size = sizeof op;
    op.kind = BP_GATHERV;
    op.dtype = BP_U32;
    op.input = {&one, rank.id == 1 ? UINT64_C(1) << 60 : 1, BP_HOST, 0};
    op.output = {all.data(), all.size(), BP_HOST, 0};
    op.out_counts = counts;
    op.out_displs = displs;
    LazyDeadline deadline(Rank::kLong);
    try {
      rank.collectives.run(op, deadline);
      ADD_FAILURE() << "a block of 4 EiB was gathered";
    } catch (const sdk::Failure& why) {
      EXPECT_EQ(why.status(), BP_INVALID);
      EXPECT_EQ(why.peer_rank(), 1);
    }
  });
}

struct Cost {
  uint32_t steps = 0;
  uint64_t published = 0;  // bytes in the slots of the rank that published most
};

// The cost of one collective with blocks of `size` bytes.
Cost cost(uint32_t kind, int32_t ranks, uint64_t size, bool oversubscribed = false) {
  const Memory memory(ranks);
  run_ranks(memory, ranks, WaitPolicy{oversubscribed ? 0 : 20'000, 200'000}, [kind, size](Rank& rank) {
    const auto blocks = [kind, &rank](std::initializer_list<uint32_t> many) {
      return std::find(many.begin(), many.end(), kind) == many.end() ? 1 : static_cast<uint64_t>(rank.size);
    };
    const uint64_t count = size / sizeof(uint32_t);
    // No byte of an input or a sum is zero.
    std::vector<uint32_t> in(count * blocks({BP_ALL_TO_ALL, BP_REDUCE_SCATTER, BP_SCATTER}), 0x01010101);
    std::vector<uint32_t> out(count * blocks({BP_ALL_TO_ALL, BP_ALL_GATHER, BP_GATHER}));
    run_once(rank, kind, in, kind == BP_BROADCAST ? in : out);
  });
  Cost result;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (uint32_t step = 0; step < kSteps; ++step) {
      result.steps = std::max(result.steps, memory.view.line(rank, step).step.load());
    }
    const std::byte* const slots = memory.view.slot(rank, 0);
    const auto zeros = static_cast<uint64_t>(std::count(slots, slots + kSteps * kSlotSize, std::byte{0}));
    result.published = std::max(result.published, kSteps * kSlotSize - zeros);
  }
  return result;
}

// The number of steps does not grow with the number of ranks, and each byte is published once.
TEST(Collectives, HasTheDocumentedCost) {
  constexpr uint64_t kPiece = kSlotSize;
  for (const int32_t ranks : {2, 3, 5, 8}) {
    for (const uint32_t kind : {BP_BARRIER, BP_BROADCAST, BP_REDUCE, BP_ALL_REDUCE, BP_GATHER, BP_SCATTER,
                                BP_ALL_GATHER, BP_REDUCE_SCATTER, BP_ALL_TO_ALL}) {
      EXPECT_EQ(cost(kind, ranks, 8).steps, 1U) << kind << " of 8 bytes, " << ranks << " ranks";
      EXPECT_EQ(cost(kind, ranks, 8).published, 0U) << kind << " of 8 bytes, " << ranks << " ranks";
    }
    for (const uint32_t kind : {BP_REDUCE, BP_ALL_REDUCE}) {
      const uint64_t size = kPiece / static_cast<uint64_t>(ranks);
      EXPECT_EQ(cost(kind, ranks, size).steps, 1U) << kind << " of " << size << " bytes, " << ranks << " ranks";
    }
    for (const uint32_t kind : {BP_ALL_TO_ALL, BP_REDUCE_SCATTER}) {  // a slot has a part for each other rank
      const uint64_t others = static_cast<uint64_t>(ranks) - 1;
      const uint64_t size = kPiece / others / 64 * 64;
      EXPECT_EQ(cost(kind, ranks, size).steps, 1U) << kind << ", " << ranks << " ranks";
      EXPECT_EQ(cost(kind, ranks, size).published, others * size) << kind << ", " << ranks << " ranks";
    }
    // In a scatter the root's slot has, and its data pass in halves.
    const uint64_t others = static_cast<uint64_t>(ranks) - 1;
    const uint64_t part = kPiece / others / 64 * 64;
    EXPECT_EQ(cost(BP_SCATTER, ranks, kPiece).steps, std::max<uint64_t>(2, (kPiece + part - 1) / part)) << ranks;
    EXPECT_EQ(cost(BP_SCATTER, ranks, kPiece).published, others * kPiece) << ranks;
    EXPECT_EQ(cost(BP_SCATTER, ranks, 8192).steps, 1U) << ranks;
    for (const uint64_t pieces : {1, 3}) {
      for (const auto& [kind, steps] :
           {std::pair(BP_BROADCAST, 1U), std::pair(BP_GATHER, 1U), std::pair(BP_ALL_GATHER, 1U),
            std::pair(BP_REDUCE, 2U), std::pair(BP_ALL_REDUCE, 2U)}) {
        const Cost paid = cost(kind, ranks, pieces * kPiece);
        const bool in_halves =
            kind == BP_BROADCAST && pieces == 1;  // others read one half while the root publishes the next
        const bool by_root = kind == BP_REDUCE && ranks == 2 && pieces > 1;
        EXPECT_EQ(paid.steps, in_halves ? 2 : pieces * (by_root ? 1 : steps))
            << kind << ", " << ranks << " ranks, " << pieces << " pieces";
        EXPECT_EQ(paid.published, pieces * kPiece) << kind << ", " << ranks << " ranks, " << pieces << " pieces";
      }
      const Cost by_root = cost(BP_REDUCE, ranks, pieces * kPiece, true);
      EXPECT_EQ(by_root.steps, pieces == 1 ? 2 : pieces) << ranks << " oversubscribed ranks, " << pieces << " pieces";
      EXPECT_EQ(by_root.published, pieces * kPiece) << ranks << " oversubscribed ranks, " << pieces << " pieces";
    }
  }
}

// Ranks in different collectives fail, and do not write to wrong memory.
TEST(Collectives, ReportsDisagreement) {
  const Memory memory(2);
  Rank first(memory.view, 0, 2, WaitPolicy{20'000, 0});
  Rank second(memory.view, 1, 2, WaitPolicy{20'000, 0});
  const auto run = [](Rank& rank, uint64_t count) {
    std::vector<uint32_t> data(count);
    try {
      run_once(rank, BP_ALL_REDUCE, data, data);
      ADD_FAILURE() << "an all_reduce of different counts succeeded";
    } catch (const sdk::Failure& why) {
      EXPECT_EQ(why.status(), BP_INVALID);
      EXPECT_EQ(why.peer_rank(), 1 - rank.id);
    }
  };
  std::thread other([&] { run(second, 20); });
  run(first, 10);
  other.join();
}

}  // namespace
}  // namespace backplane::shm::test
