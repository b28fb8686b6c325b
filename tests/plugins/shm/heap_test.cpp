// SPDX-License-Identifier: Apache-2.0
//
// Heaps, and failing collectives with buffers in them: malicious, disagreeing and dying ranks.
#include "heap.hpp"

#include <array>

#include "rounds.hpp"

namespace backplane::shm::test {
namespace {

void run(Rank& rank, uint32_t kind, const Numbers& in, const Numbers& out, uint64_t count) {
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = kind;
  op.dtype = BP_U32;
  op.input = {in.data(), count, BP_HOST, 0};
  op.output = {out.data(), count, BP_HOST, 0};
  LazyDeadline deadline(Rank::kLong);
  rank.collectives.run(op, deadline);
}

TEST(Heap, AllocatesAndFreesPages) {
  const Shared shared(1);
  Heaps& heap = *shared.heaps[0];
  EXPECT_EQ(shared.used(), 0U);
  std::mt19937_64 random(3);
  std::vector<Numbers> kept;
  for (int i = 0; i < 3000; ++i) {
    if (kept.size() > 20 || (!kept.empty() && random() % 2 == 0)) {
      const size_t which = random() % kept.size();
      EXPECT_TRUE(kept[which].all(static_cast<uint32_t>(kept[which].count)));
      std::swap(kept[which], kept.back());
      kept.pop_back();
    } else {
      kept.emplace_back(heap, 1 + random() % 200'000);
      kept.back().fill(static_cast<uint32_t>(kept.back().count));
    }
    ASSERT_LT(shared.used(), 22 * UINT64_C(804'000));
  }
  kept.clear();
  EXPECT_EQ(shared.used(), 0U);
  const Numbers whole(heap, kHeap / sizeof(uint32_t));  // all memory is free
  std::string text;
  EXPECT_EQ(status_of([&heap] { heap.allocate(1, BP_HOST, 0); }, &text), BP_RESOURCE);
  EXPECT_NE(text.find("the heap of this rank"), std::string::npos) << text;
}

TEST(Heap, RejectsImpossibleRequests) {
  const Shared shared(1);
  const auto refuses = [](Heaps& heap, uint64_t bytes, uint32_t memory, int32_t status, const char* words) {
    std::string text;
    EXPECT_EQ(status_of([&heap, bytes, memory] { heap.allocate(bytes, memory, 0); }, &text), status);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  refuses(*shared.heaps[0], kHeap + 1, BP_HOST, BP_RESOURCE, "exceed the memory of this host");
  refuses(*shared.heaps[0], ~UINT64_C(0), BP_HOST, BP_RESOURCE, "exceed the memory of this host");
  refuses(*shared.heaps[0], 1, BP_CUDA, BP_UNSUPPORTED, "shm allocates host memory only");
  Heaps none(duplicate(shared.file.get()), 0, 0, 0, 1);
  refuses(none, 1, BP_HOST, BP_UNSUPPORTED, "leave no room for heaps");
}

// The fallback before Linux 5.14.
TEST(Heap, PopulatesWithoutMadvise) {
  std::thread([] {  // the filter applies to this thread only
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 23, 0, 1),  // MADV_POPULATE_WRITE
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program = {6, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      GTEST_SKIP() << "there is no seccomp";
    }
    const Shared shared(2);
    const Numbers numbers(*shared.heaps[1], 10 * kPage / sizeof(uint32_t));
    EXPECT_EQ(shared.used(), 10 * kPage);
    EXPECT_EQ(written(shared.heaps[0]->at(1, 1, 10 * kPage, 1), 10 * kPage), 0U);
    numbers.fill(kUntouched);
    EXPECT_EQ(shared.used(), 10 * kPage);
  })
      .join();
}

TEST(Heap, OutlivesTheGroup) {
  auto shared = std::make_unique<Shared>(1);
  const Numbers numbers(*shared->heaps[0], 1000);
  shared.reset();
  numbers.fill(5);
  EXPECT_TRUE(numbers.all(5));
}

TEST(Heap, FindsItsOwnBuffers) {
  const Shared shared(2);
  Heaps& heap = *shared.heaps[0];
  std::vector<std::byte> elsewhere(100);
  EXPECT_EQ(heap.location_of(elsewhere.data(), 100), 0U);
  const Numbers numbers(heap, 1000);
  EXPECT_EQ(heap.location_of(numbers.bytes(), 4000), 1U);
  EXPECT_EQ(heap.location_of(numbers.bytes() + 4, 8), 5U);
  EXPECT_EQ(heap.location_of(numbers.bytes(), kHeap), 1U);
  EXPECT_EQ(heap.location_of(numbers.bytes(), kHeap + 1), 0U);
  EXPECT_EQ(heap.location_of(numbers.bytes() + 1, kHeap), 0U);
  EXPECT_EQ(heap.location_of(elsewhere.data(), 100), 0U);
  numbers.data()[1] = 77;
  uint32_t read = 0;
  std::memcpy(&read, shared.heaps[1]->at(0, 5, 4, 4), 4);
  EXPECT_EQ(read, 77U);
}

// No memory outside of the announced rank's heap is accessed.
TEST(Heap, RejectsForgedLocations) {
  const Shared shared(2);
  const auto refuses = [&shared](uint64_t location, uint64_t size) {
    const bool known = shared.heaps[1]->at(0, location, size, 4) != nullptr;
    try {
      EXPECT_EQ(shared.pools[1].at(0, location, size, 4) != nullptr, known);
    } catch (const sdk::Failure& why) {
      EXPECT_TRUE(!known && why.status() == BP_INVALID && why.peer_rank() == 0) << why.what();
    }
    return !known;
  };
  EXPECT_TRUE(refuses(0, 4));
  EXPECT_TRUE(refuses(1, kHeap + 1));
  EXPECT_TRUE(refuses(1 + kHeap, 1));
  EXPECT_TRUE(refuses(5, kHeap));
  EXPECT_TRUE(refuses(2, 4));
  EXPECT_TRUE(refuses(~UINT64_C(0), 4));
  EXPECT_TRUE(refuses(~UINT64_C(0) - 3, 8));
  EXPECT_TRUE(refuses(kHeap - 7, ~UINT64_C(0) - 4096));
  EXPECT_FALSE(refuses(1, kHeap));
  EXPECT_FALSE(refuses(kHeap - 3, 4));
  EXPECT_EQ(*shared.heaps[1]->at(0, kHeap, 1, 1), std::byte{0});  // the last byte, on a new page
}

// Buffers are freed while others still map them.
void all_reduces(Rank& rank, uint64_t rounds) {
  std::mt19937_64 same(11);
  std::mt19937_64 own(static_cast<uint64_t>(rank.id));
  for (uint64_t round = 0; round < rounds && !testing::Test::HasFatalFailure(); ++round) {
    const uint64_t count = 1 + same() % (same() % 2 == 0 ? 3'000 : 60'000);
    const Placement placement = std::array{Placement::kAny, Placement::kHeap, Placement::kHeapInPlace}[same() % 3];
    yield_sometimes(own);
    CollectiveRound(rank, round, count, placement, own).run(BP_ALL_REDUCE);
  }
}

TEST(Heap, ManyAllReduces) {
  for (const int32_t ranks : {2, 3, 5}) {
    on_heaps(ranks, WaitPolicy{20'000, 200'000}, [](Rank& rank) { all_reduces(rank, 20 * kEffort); });
  }
  on_heaps(3, WaitPolicy{0, 0}, [](Rank& rank) { all_reduces(rank, 10 * kEffort); });
}

TEST(Heap, ReportsDisagreement) {
  on_heaps(2, WaitPolicy{20'000, 0}, [](Rank& rank) {
    const Numbers data(*rank.own_heap, 100'000);
    try {
      run(rank, BP_ALL_REDUCE, data, data, rank.id == 0 ? 100'000 : 99'999);
      ADD_FAILURE() << "an all_reduce of different counts succeeded";
    } catch (const sdk::Failure& why) {
      EXPECT_EQ(why.status(), BP_INVALID);
      EXPECT_EQ(why.peer_rank(), 1 - rank.id);
    }
  });
}

// A rank that announces memory outside its heap is named by all before anything is read.
TEST(Heap, ForgedLineEndsTheCollective) {
  const Memory memory(2);
  const Shared shared(2);
  Rank honest(memory.view, 0, 2, WaitPolicy{20'000, 0}, &shared.pools[0]);
  Rank forger(memory.view, 1, 2, WaitPolicy{20'000, 0});
  constexpr uint64_t kCount = 100'000;
  std::thread other([&] {
    // Step 1 of the honest rank's operation, whose digest the other has read.
    await_step(memory.view, 0, 1);
    Line& line = memory.view.line(1, 1);
    line.digest = memory.view.line(0, 1).digest;
    const uint64_t announcement[2] = {kHeap - 8, 1};
    std::memcpy(line.data.data(), announcement, sizeof announcement);
    line.step.store(1);
    forger.peers.wake(0);
  });
  const Numbers data(*shared.heaps[0], kCount);
  try {
    run(honest, BP_ALL_REDUCE, data, data, kCount);
    ADD_FAILURE() << "a buffer beyond the heap was read";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_INVALID);
    EXPECT_EQ(why.peer_rank(), 1);
    EXPECT_NE(std::string(why.what()).find("outside its memory"), std::string::npos) << why.what();
  }
  other.join();
}

// A rank that leaves after exposing its buffers is named, and the others get their buffers back.
TEST(Heap, NamesARankThatLeavesDuringACollective) {
  on_heaps(3, WaitPolicy{20'000, 200'000}, [](Rank& rank) {
    const Numbers data(*rank.own_heap, 100'000);
    data.fill(1);
    run(rank, BP_ALL_REDUCE, data, data, data.count);
    EXPECT_TRUE(data.all(3));
    if (rank.id == 2) return rank.peers.leave();
    try {
      run(rank, BP_ALL_REDUCE, data, data, data.count);
      ADD_FAILURE() << "an all_reduce without rank 2 succeeded";
    } catch (const sdk::Failure& why) {
      EXPECT_EQ(why.status(), BP_PEER_LOST) << why.what();
      EXPECT_EQ(why.peer_rank(), 2);
    }
  });
}

// A rank that has failed may overwrite its input. Later readers must not accept it.
TEST(Heap, LateReadersFail) {
  const Memory memory(2);
  const Shared shared(2);
  Rank root(memory.view, 0, 2, WaitPolicy{20'000, 0}, &shared.pools[0]);
  Rank late(memory.view, 1, 2, WaitPolicy{20'000, 0}, &shared.pools[1]);
  const Numbers data(*shared.heaps[0], 100'000);
  data.fill(7);
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = BP_BROADCAST;
  op.dtype = BP_U32;
  op.output = {data.data(), data.count, BP_HOST, 0};
  op.input = op.output;
  LazyDeadline deadline(1'000'000);
  EXPECT_EQ(status_of([&] { root.collectives.run(op, deadline); }), BP_TIMEOUT);
  data.fill(8);
  std::vector<uint32_t> out(data.count);
  op.input = {};
  op.output = {out.data(), data.count, BP_HOST, 0};
  LazyDeadline long_enough(Rank::kLong);
  try {
    late.collectives.run(op, long_enough);
    ADD_FAILURE() << "a buffer that was no longer exposed was read: " << out[0];
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST) << why.what();
    EXPECT_EQ(why.peer_rank(), 0);
  }
}

// After an all_reduce a rank may fail in the next collective, while another is late in the last step. The late rank has
// read valid inputs. Rank 1 is simulated; it exposes its input, and optionally its output.
TEST(Heap, LaterFailureDoesNotFailAnAllReduce) {
  constexpr uint64_t kCount = 32'768;  // whole pages and two partial ones
  for (const auto& [lends_output, last] : {std::pair{true, 2U}, std::pair{false, 4U}}) {
    const Memory memory(2);
    const Shared shared(2);
    Rank honest(memory.view, 0, 2, WaitPolicy{20'000, 0}, &shared.pools[0]);
    Rank early(memory.view, 1, 2, WaitPolicy{20'000, 0}, &shared.pools[1]);
    const Numbers theirs(*shared.heaps[1], kCount);
    theirs.fill(2);
    std::thread other([&memory, &early, exposed_input = lends_output, end = last] {
      for (uint32_t step = 1; step <= end; ++step) {
        await_step(memory.view, 0, step);
        Line& line = memory.view.line(1, step);
        line.digest = memory.view.line(0, step).digest;
        const uint64_t announcement[2] = {1, exposed_input ? UINT64_C(1) : 0};
        if (step == 1) std::memcpy(line.data.data(), announcement, sizeof announcement);
        if (step == end) early.peers.mark_collective_failed();
        line.step.store(step);
        early.peers.wake(0);
      }
    });
    const Numbers data(*shared.heaps[0], kCount);
    data.fill(1);
    EXPECT_NO_THROW(run(honest, BP_ALL_REDUCE, data, data, kCount)) << last << " steps";
    other.join();
  }
}

// A rank that fails owns its output at once. Late writers write to detached pages.
TEST(Heap, LateWritersDoNotReachTheProgram) {
  const Memory memory(2);
  const Shared shared(2);
  Rank early(memory.view, 0, 2, WaitPolicy{20'000, 0}, &shared.pools[0]);
  Rank late(memory.view, 1, 2, WaitPolicy{20'000, 0}, &shared.pools[1]);
  constexpr uint64_t kCount = 100'000;
  const Numbers data(*shared.heaps[0], kCount + 2);  // the first and last page hold other data as well
  data.fill(7);
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = BP_ALL_REDUCE;
  op.dtype = BP_U32;
  op.input = op.output = {data.data() + 1, kCount, BP_HOST, 0};
  LazyDeadline deadline(1'000'000);
  EXPECT_EQ(status_of([&] { early.collectives.run(op, deadline); }), BP_TIMEOUT);
  uint64_t location = 0;  // of the output, as announced by rank 0
  std::memcpy(&location, memory.view.line(0, 1).data.data() + sizeof location, sizeof location);
  ASSERT_EQ(location, 5U);
  const Pages pages(reinterpret_cast<std::byte*>(data.data() + 1), kCount * sizeof(uint32_t));
  ASSERT_GT(pages.size(), kCount * sizeof(uint32_t) - 2 * kPage);
  std::memset(shared.heaps[1]->at(0, location, kCount * sizeof(uint32_t), 4) + pages.begin, 0xff, pages.size());
  for (uint64_t i = 0; i < data.count; ++i) ASSERT_NE(data.data()[i], ~UINT32_C(0)) << i;
  EXPECT_EQ(data.data()[0], 7U);
  EXPECT_EQ(data.data()[kCount + 1], 7U);
}

}  // namespace
}  // namespace backplane::shm::test
