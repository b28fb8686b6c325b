// SPDX-License-Identifier: Apache-2.0
//
// The ranks' heaps, and what becomes of collectives whose buffers lie there when a rank lies, differs or dies.
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
  Limit limit(Rank::kLong);
  rank.collectives.run(op, limit);
}

TEST(Heap, PagesComeAndGo) {
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
  const Numbers whole(heap, kHeap / sizeof(uint32_t));  // nothing of it was lost
  std::string text;
  EXPECT_EQ(status_of([&heap] { heap.allocate(1, BP_HOST, 0); }, &text), BP_RESOURCE);
  EXPECT_NE(text.find("among the buffers of this rank"), std::string::npos) << text;
}

TEST(Heap, RefusesWhatItHasNot) {
  const Shared shared(1);
  const auto refuses = [](Heaps& heap, uint64_t bytes, uint32_t memory, int32_t status, const char* words) {
    std::string text;
    EXPECT_EQ(status_of([&heap, bytes, memory] { heap.allocate(bytes, memory, 0); }, &text), status);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  refuses(*shared.heaps[0], kHeap + 1, BP_HOST, BP_RESOURCE, "more than the memory of this host");
  refuses(*shared.heaps[0], ~UINT64_C(0), BP_HOST, BP_RESOURCE, "more than the memory of this host");
  refuses(*shared.heaps[0], 1, BP_CUDA, BP_UNSUPPORTED, "shm has host memory only");
  Heaps none(another(shared.file.get()), 0, 0, 0, 1);
  refuses(none, 1, BP_HOST, BP_UNSUPPORTED, "leave no room for heaps");
}

// Before Linux 5.14.
TEST(Heap, PagesAreProvidedWhereMadviseCannot) {
  std::thread([] {  // the filter is for this thread alone
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

TEST(Heap, KnowsItsOwn) {
  const Shared shared(2);
  Heaps& heap = *shared.heaps[0];
  std::vector<std::byte> elsewhere(100);
  EXPECT_EQ(heap.place_of(elsewhere.data(), 100), 0U);
  const Numbers numbers(heap, 1000);
  EXPECT_EQ(heap.place_of(numbers.bytes(), 4000), 1U);
  EXPECT_EQ(heap.place_of(numbers.bytes() + 4, 8), 5U);
  EXPECT_EQ(heap.place_of(numbers.bytes(), kHeap), 1U);
  EXPECT_EQ(heap.place_of(numbers.bytes(), kHeap + 1), 0U);
  EXPECT_EQ(heap.place_of(numbers.bytes() + 1, kHeap), 0U);
  EXPECT_EQ(heap.place_of(elsewhere.data(), 100), 0U);
  numbers.data()[1] = 77;
  uint32_t read = 0;
  std::memcpy(&read, shared.heaps[1]->at(0, 5, 4, 4), 4);
  EXPECT_EQ(read, 77U);
}

// Whatever a rank names, nothing outside of its heap is touched.
TEST(Heap, HostilePlacesAreRefused) {
  const Shared shared(2);
  const auto refuses = [&shared](uint64_t place, uint64_t size) {
    const bool known = shared.heaps[1]->at(0, place, size, 4) != nullptr;
    try {
      EXPECT_EQ(shared.pools[1].at(0, place, size, 4) != nullptr, known);
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
  EXPECT_EQ(*shared.heaps[1]->at(0, kHeap, 1, 1), std::byte{0});  // the last byte; no page was there
}

// Buffers go while others still map them.
void all_reduces(Rank& rank, uint64_t rounds) {
  std::mt19937_64 same(11);
  std::mt19937_64 own(static_cast<uint64_t>(rank.id));
  for (uint64_t round = 0; round < rounds && !testing::Test::HasFatalFailure(); ++round) {
    const uint64_t count = 1 + same() % (same() % 2 == 0 ? 3'000 : 60'000);
    const Where where = std::array{Where::kAny, Where::kHeap, Where::kHeapInPlace}[same() % 3];
    stumble(own);
    Round(rank, round, count, where, own).run(BP_ALL_REDUCE);
  }
}

TEST(Heap, AllReduceOneAfterTheOther) {
  for (const int32_t ranks : {2, 3, 5}) {
    on_heaps(ranks, Patience{20'000, 200'000}, [](Rank& rank) { all_reduces(rank, 20 * kEffort); });
  }
  on_heaps(3, Patience{0, 0}, [](Rank& rank) { all_reduces(rank, 10 * kEffort); });
}

TEST(Heap, DisagreementIsNamed) {
  on_heaps(2, Patience{20'000, 0}, [](Rank& rank) {
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

// A rank whose line names what is not its own is told apart by all, before anything is read.
TEST(Heap, AHostileLineEndsTheCollective) {
  const Memory memory(2);
  const Shared shared(2);
  Rank honest(memory.view, 0, 2, Patience{20'000, 0}, &shared.pools[0]);
  Rank liar(memory.view, 1, 2, Patience{20'000, 0});
  constexpr uint64_t kCount = 100'000;
  std::thread other([&] {
    // Step 1 of the honest rank's operation, whose digest it has read.
    await_step(memory.view, 0, 1);
    Line& line = memory.view.line(1, 1);
    line.what = memory.view.line(0, 1).what;
    const uint64_t places[2] = {kHeap - 8, 1};
    std::memcpy(line.data.data(), places, sizeof places);
    line.step.store(1);
    liar.peers.wake(0);
  });
  const Numbers data(*shared.heaps[0], kCount);
  try {
    run(honest, BP_ALL_REDUCE, data, data, kCount);
    ADD_FAILURE() << "a buffer beyond the heap was read";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_INVALID);
    EXPECT_EQ(why.peer_rank(), 1);
    EXPECT_NE(std::string(why.what()).find("not in its memory"), std::string::npos) << why.what();
  }
  other.join();
}

// A rank that goes after it has lent its buffers is named, and the others have theirs back.
TEST(Heap, WhoeverLeavesAmidIsNamed) {
  on_heaps(3, Patience{20'000, 200'000}, [](Rank& rank) {
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

// A rank that gives up may do with its input what it likes: whoever reads it later must not take it for what was sent.
TEST(Heap, LateReadersAreTold) {
  const Memory memory(2);
  const Shared shared(2);
  Rank root(memory.view, 0, 2, Patience{20'000, 0}, &shared.pools[0]);
  Rank late(memory.view, 1, 2, Patience{20'000, 0}, &shared.pools[1]);
  const Numbers data(*shared.heaps[0], 100'000);
  data.fill(7);
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = BP_BROADCAST;
  op.dtype = BP_U32;
  op.output = {data.data(), data.count, BP_HOST, 0};
  op.input = op.output;
  Limit limit(1'000'000);
  EXPECT_EQ(status_of([&] { root.collectives.run(op, limit); }), BP_TIMEOUT);
  data.fill(8);
  std::vector<uint32_t> out(data.count);
  op.input = {};
  op.output = {out.data(), data.count, BP_HOST, 0};
  Limit long_enough(Rank::kLong);
  try {
    late.collectives.run(op, long_enough);
    ADD_FAILURE() << "a buffer that was no longer lent was read: " << out[0];
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST) << why.what();
    EXPECT_EQ(why.peer_rank(), 0);
  }
}

// Whoever has all results of an all_reduce may give up in the next collective: a rank that comes late to the last step
// has read what was lent when it was good. Rank 1 is played: it lends its input, and its output, too, or not.
TEST(Heap, WhoGivesUpLaterFailsNoAllReduce) {
  constexpr uint64_t kCount = 32'768;  // whole pages, and two pieces
  for (const auto& [lends_output, last] : {std::pair{true, 2U}, std::pair{false, 4U}}) {
    const Memory memory(2);
    const Shared shared(2);
    Rank honest(memory.view, 0, 2, Patience{20'000, 0}, &shared.pools[0]);
    Rank early(memory.view, 1, 2, Patience{20'000, 0}, &shared.pools[1]);
    const Numbers theirs(*shared.heaps[1], kCount);
    theirs.fill(2);
    std::thread other([&memory, &early, lends = lends_output, end = last] {
      for (uint32_t step = 1; step <= end; ++step) {
        await_step(memory.view, 0, step);
        Line& line = memory.view.line(1, step);
        line.what = memory.view.line(0, step).what;
        const uint64_t places[2] = {1, lends ? UINT64_C(1) : 0};
        if (step == 1) std::memcpy(line.data.data(), places, sizeof places);
        if (step == end) early.peers.break_loan();
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

// A rank that gives up has its output for itself at once: whoever comes late writes where nobody reads.
TEST(Heap, LateWritersMissTheProgramsMemory) {
  const Memory memory(2);
  const Shared shared(2);
  Rank early(memory.view, 0, 2, Patience{20'000, 0}, &shared.pools[0]);
  Rank late(memory.view, 1, 2, Patience{20'000, 0}, &shared.pools[1]);
  constexpr uint64_t kCount = 100'000;
  const Numbers data(*shared.heaps[0], kCount + 2);  // the first and the last page hold other things, too
  data.fill(7);
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = BP_ALL_REDUCE;
  op.dtype = BP_U32;
  op.input = op.output = {data.data() + 1, kCount, BP_HOST, 0};
  Limit limit(1'000'000);
  EXPECT_EQ(status_of([&] { early.collectives.run(op, limit); }), BP_TIMEOUT);
  uint64_t place = 0;  // of the output, as rank 0 has shown it
  std::memcpy(&place, memory.view.line(0, 1).data.data() + sizeof place, sizeof place);
  ASSERT_EQ(place, 5U);
  const Pages pages(reinterpret_cast<std::byte*>(data.data() + 1), kCount * sizeof(uint32_t));
  ASSERT_GT(pages.size(), kCount * sizeof(uint32_t) - 2 * kPage);
  std::memset(shared.heaps[1]->at(0, place, kCount * sizeof(uint32_t), 4) + pages.begin, 0xff, pages.size());
  for (uint64_t i = 0; i < data.count; ++i) ASSERT_NE(data.data()[i], ~UINT32_C(0)) << i;
  EXPECT_EQ(data.data()[0], 7U);
  EXPECT_EQ(data.data()[kCount + 1], 7U);
}

}  // namespace
}  // namespace backplane::shm::test
