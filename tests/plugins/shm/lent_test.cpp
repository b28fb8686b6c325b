// SPDX-License-Identifier: Apache-2.0
//
// Buffers in the ranks' heaps, and inputs in their processes, in collectives: the results are those of any buffers, and
// nothing is copied aside.
#include <fcntl.h>

#include <numeric>

#include "heaps.hpp"

namespace backplane::shm::test {
namespace {

// How a round chooses where its buffers lie: all in heaps, each by chance, or none there.
enum class Where { kHeap, kAny, kOrdinary };

struct Buffer {
  Buffer(Rank& rank, uint64_t count, bool in_heap) : plain(in_heap ? 0 : count) {
    if (in_heap) own.emplace(*rank.own_heap, std::max<uint64_t>(1, count));
    numbers = {in_heap ? own->data() : plain.data(), count};
    std::fill(numbers.begin(), numbers.end(), kUntouched);
  }

  std::vector<uint32_t> plain;
  std::optional<Numbers> own;
  std::span<uint32_t> numbers;
};

// Blocks of numbers, one for each rank, with gaps between them if their counts vary.
struct Blocks {
  Blocks(std::vector<uint64_t> sizes, uint64_t gap) : counts(std::move(sizes)), displs(counts.size()) {
    for (size_t i = 0; i < counts.size(); ++i) {
      displs[i] = total;
      total += counts[i] + gap;
    }
  }
  std::vector<uint64_t> counts;
  std::vector<uint64_t> displs;
  uint64_t total = 0;
};

class Round {
 public:
  Round(Rank& rank, uint64_t number, uint64_t most, Where where, std::mt19937_64& random)
      : rank_(rank), number_(number), most_(most), where_(where), random_(random) {}

  void run(uint32_t kind) {
    kind_ = kind;
    varies_ = kind == BP_GATHERV || kind == BP_SCATTERV || kind == BP_ALL_GATHERV || kind == BP_REDUCE_SCATTERV ||
              kind == BP_ALL_TO_ALLV;
    const bool many_in =
        is(BP_SCATTER, BP_SCATTERV) || is(BP_REDUCE_SCATTER, BP_REDUCE_SCATTERV) || is(BP_ALL_TO_ALL, BP_ALL_TO_ALLV);
    const bool many_out =
        is(BP_GATHER, BP_GATHERV) || is(BP_ALL_GATHER, BP_ALL_GATHERV) || is(BP_ALL_TO_ALL, BP_ALL_TO_ALLV);
    const auto root = static_cast<int32_t>(number_ % static_cast<uint64_t>(rank_.size));
    const bool gives = root == rank_.id || !(is(BP_SCATTER, BP_SCATTERV) || kind == BP_BROADCAST);
    const bool gets = root == rank_.id || !(is(BP_GATHER, BP_GATHERV) || kind == BP_REDUCE);
    const Blocks in = blocks(gives, many_in, true);
    const Blocks out = blocks(gets, many_out, false);
    const Buffer input(rank_, in.total, in_heap());
    const Buffer output(rank_, out.total, in_heap());
    std::span<uint32_t> from = input.numbers;
    std::span<uint32_t> to = output.numbers;
    if (gives && gets && is_in_place()) {
      if (many_in && !many_out) {
        to = from.subspan(in.displs[at(rank_.id)], in.counts[at(rank_.id)]);
      } else {
        from = many_out && !many_in ? to.subspan(out.displs[at(rank_.id)], out.counts[at(rank_.id)]) : to;
      }
    }
    for (int32_t other = 0; other < static_cast<int32_t>(in.counts.size()); ++other) {
      for (uint64_t i = 0; i < in.counts[at(other)]; ++i) from[in.displs[at(other)] + i] = given(rank_.id, other, i);
    }
    bp_op op = {};
    op.struct_size = sizeof op;
    op.kind = kind;
    op.dtype = BP_U32;
    op.root = root;
    op.input = buffer(from);
    op.output = buffer(to);
    if (!gives) op.input = {};
    if (!gets) op.output = {};
    if (varies_ && many_in && gives) op.in_counts = in.counts.data(), op.in_displs = in.displs.data();
    if (varies_ && many_out && gets) op.out_counts = out.counts.data(), op.out_displs = out.displs.data();
    Limit limit(Rank::kLong);
    rank_.collectives.run(op, limit);
    expect(out, to, many_out, root);
  }

 private:
  static size_t at(int32_t rank) { return static_cast<size_t>(rank); }
  bool is(uint32_t one, uint32_t other) const { return kind_ == one || kind_ == other; }
  static bp_buffer buffer(std::span<uint32_t> numbers) { return {numbers.data(), numbers.size(), BP_HOST, 0}; }
  // Broadcast always is; all_to_allv never, and no rank where all its input is to be lent.
  bool is_in_place() {
    if (kind_ == BP_BROADCAST) return true;
    return kind_ != BP_ALL_TO_ALLV && where_ == Where::kAny && random_() % 2 == 0;
  }
  bool in_heap() { return where_ == Where::kHeap || (where_ == Where::kAny && random_() % 2 == 0); }
  // What `from` gives to `to`, in elements; of operations that reduce, all give a rank the same number.
  uint64_t count(int32_t from, int32_t to) const {
    if (!varies_) return most_;
    if (kind_ == BP_GATHERV || kind_ == BP_ALL_GATHERV) to = 0;
    if (kind_ == BP_SCATTERV || kind_ == BP_REDUCE_SCATTERV) from = 0;
    return most_ * static_cast<uint64_t>((from + 2 * to + static_cast<int32_t>(number_)) % 3) / 2;
  }
  Blocks blocks(bool any, bool many, bool is_input) const {
    std::vector<uint64_t> sizes;
    for (int32_t other = 0; any && other < (many ? rank_.size : 1); ++other) {
      sizes.push_back(is_input ? count(rank_.id, other) : count(other, rank_.id));
    }
    return {std::move(sizes), varies_ && many ? UINT64_C(3) : 0};
  }
  uint32_t given(int32_t from, int32_t to, uint64_t i) const {
    return static_cast<uint32_t>(number_ * 7919 + at(from) * 1'000'003 + at(to) * 10'007 + i * 31);
  }
  uint32_t wanted(int32_t from, int32_t root, uint64_t i) const {
    if (kind_ == BP_BROADCAST) return given(root, 0, i);
    if (is(BP_SCATTER, BP_SCATTERV)) return given(root, rank_.id, i);
    if (is(BP_ALL_TO_ALL, BP_ALL_TO_ALLV)) return given(from, rank_.id, i);
    if (is(BP_GATHER, BP_GATHERV) || is(BP_ALL_GATHER, BP_ALL_GATHERV)) return given(from, 0, i);
    const bool each = is(BP_REDUCE_SCATTER, BP_REDUCE_SCATTERV);
    uint32_t sum = 0;
    for (int32_t rank = 0; rank < rank_.size; ++rank) sum += given(rank, each ? rank_.id : 0, i);
    return sum;
  }
  void expect(const Blocks& out, std::span<const uint32_t> numbers, bool many, int32_t root) const {
    uint64_t next = 0;
    for (size_t block = 0; block < out.counts.size(); ++block) {
      for (; next < out.displs[block]; ++next) ASSERT_EQ(numbers[next], kUntouched) << "kind " << kind_;
      for (uint64_t i = 0; i < out.counts[block]; ++i, ++next) {
        ASSERT_EQ(numbers[next], wanted(many ? static_cast<int32_t>(block) : 0, root, i))
            << "kind " << kind_ << ", block " << block << " at " << i;
      }
    }
    for (; next < numbers.size(); ++next) ASSERT_EQ(numbers[next], kUntouched) << "kind " << kind_;
  }

  Rank& rank_;
  const uint64_t number_;
  const uint64_t most_;  // elements of a block
  const Where where_;
  std::mt19937_64& random_;  // this rank's own
  uint32_t kind_ = 0;
  bool varies_ = false;
};

constexpr uint32_t kKinds[] = {BP_BROADCAST,  BP_REDUCE,          BP_ALL_REDUCE, BP_GATHER,      BP_GATHERV,
                               BP_SCATTER,    BP_SCATTERV,        BP_ALL_GATHER, BP_ALL_GATHERV, BP_REDUCE_SCATTER,
                               BP_ALL_TO_ALL, BP_REDUCE_SCATTERV, BP_ALL_TO_ALLV};

void any_rounds(Rank& rank) {
  std::mt19937_64 same(5);
  std::mt19937_64 own(static_cast<uint64_t>(rank.id));
  for (uint64_t round = 0; round < 30 * kEffort && !testing::Test::HasFatalFailure(); ++round) {
    const uint64_t most = 1 + same() % (same() % 3 == 0 ? 40'000 : 1'500);
    const Where where = same() % 3 == 0 ? Where::kHeap : Where::kAny;
    stumble(own);
    Round(rank, round, most, where, own).run(kKinds[same() % std::size(kKinds)]);
  }
}

TEST(Lent, AnyBufferInAnyCollective) {
  for (const int32_t ranks : {2, 3, 5}) on_heaps(ranks, Patience{20'000, 200'000}, any_rounds);
}

TEST(Lent, AnyBufferWhereProcessesAreRead) {
  for (const Cma cma : {Cma::kOn, Cma::kAuto}) {
    for (const int32_t ranks : {2, 3}) on_heaps(ranks, Patience{20'000, 200'000}, any_rounds, cma);
  }
}

TEST(Lent, AnyBufferWhereOneRankMayNotReadProcesses) {
  if (!may_forbid_reading()) GTEST_SKIP() << "there is no seccomp";
  on_heaps(
      3, Patience{20'000, 200'000},
      [](Rank& rank) {
        EXPECT_TRUE(rank.id != 1 || forbid_reading());
        any_rounds(rank);
      },
      Cma::kOn);
}

// Who reads nothing needs nothing of what others lend: here it could not have it.
TEST(Lent, WhoReadsNothingMapsNothing) {
  constexpr int32_t kRanks = 3;
  Shared shared(kRanks);
  shared.pools[1] = Pools(std::make_shared<Heaps>(sdk::Descriptor(::open("/dev/null", O_RDONLY)), 0, kHeap, 1, kRanks));
  run_ranks(
      Memory(kRanks), kRanks, Patience{20'000, 200'000},
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
        Limit limit(Rank::kLong);
        rank.collectives.run(op, limit);
        for (uint64_t i = 0; i < output.numbers.size(); ++i) ASSERT_EQ(output.numbers[i], i / count);
      },
      shared.pools);
}

// If all buffers lie in heaps, no byte of them passes through a slot; of some operations their places do.
TEST(Lent, NothingIsStagedInCollectives) {
  constexpr int32_t kRanks = 3;
  for (const uint32_t kind : kKinds) {
    const Shared shared(kRanks);
    const Memory memory(kRanks);
    run_ranks(
        memory, kRanks, Patience{20'000, 200'000},
        [kind](Rank& rank) {
          std::mt19937_64 own(1);
          for (uint64_t round = 0; round < 4; ++round) Round(rank, round, 50'000, Where::kHeap, own).run(kind);
        },
        shared.pools);
    const uint64_t bytes = written(memory.view.slot(0, 0), kRanks * kSteps * kSlotSize);
    // Results of reduce come to the root through the slots of those who have reduced them.
    const uint64_t most = kind == BP_REDUCE ? kRanks * kSteps * kSlotSize / kRanks : kRanks * kSteps * kRanks * 8;
    EXPECT_LE(bytes, most) << "kind " << kind;
  }
}

void all_meet(Rank& rank) {
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = BP_BARRIER;
  Limit limit(Rank::kLong);
  rank.collectives.run(op, limit);
}

// Nor does ordinary memory where it is read in processes, when all have said that they can.
TEST(Lent, InputsThatAreReadInProcessesAreNotStaged) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  constexpr int32_t kRanks = 3;
  for (const uint32_t kind :
       {BP_GATHER, BP_GATHERV, BP_SCATTER, BP_SCATTERV, BP_ALL_GATHER, BP_ALL_GATHERV, BP_ALL_TO_ALL, BP_ALL_TO_ALLV}) {
    const Memory memory(kRanks);
    std::byte* const slots = memory.view.slot(0, 0);
    run_ranks(
        memory, kRanks, Patience{20'000, 200'000},
        [kind, slots](Rank& rank) {
          std::mt19937_64 own(1);
          for (uint64_t round = 0; round < kRanks; ++round) Round(rank, round, 50'000, Where::kOrdinary, own).run(kind);
          all_meet(rank);
          if (rank.id == 0) std::fill_n(slots, kRanks * kSteps * kSlotSize, std::byte{0});
          all_meet(rank);
          for (uint64_t round = kRanks; round < 2 * kRanks; ++round)
            Round(rank, round, 50'000, Where::kOrdinary, own).run(kind);
        },
        {}, Cma::kOn);
    EXPECT_LE(written(slots, kRanks * kSteps * kSlotSize), kRanks * kSteps * kRanks * 8) << "kind " << kind;
  }
}

// A list may name addresses where its line names a place in the heap: they are read in the process all the same.
TEST(Lent, HostileListsOfAddressesAreReadInTheProcess) {
  const Memory memory(2);
  const Shared shared(2);
  Rank honest(memory.view, 0, 2, Patience{20'000, 0}, &shared.pools[0], Cma::kOn);
  Rank liar(memory.view, 1, 2, Patience{20'000, 0}, &shared.pools[1], Cma::kOn);
  const uint64_t one[2] = {10'000, 10'000};
  const uint64_t displs[2] = {0, 10'000};
  std::thread other([&memory, &liar] {
    for (const uint32_t step : {1U, 2U}) {  // the ranks first agree on the number of pieces
      const Line& theirs = memory.view.line(0, step);
      while (theirs.step.load() != step) sched_yield();
      Line& line = memory.view.line(1, step);
      line.what = theirs.what;
      const uint64_t said = step == 1 ? 40'000 : 1;
      std::memcpy(line.data.data(), &said, sizeof said);
      const uint64_t list[2] = {kInProcess | 4096, kInProcess | 4096};
      std::memcpy(memory.view.slot(1, step), list, sizeof list);
      line.step.store(step);
      liar.peers.wake(0);
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
  Limit limit(Rank::kLong);
  EXPECT_THROW(honest.collectives.run(op, limit), sdk::Failure);
  other.join();
}

// How a rank fails to which another one names this address of its process; that one has given up its loan, or not.
int32_t failure_of_reading(uint32_t kind, uint64_t address, bool gave_up) {
  const Memory memory(2);
  Rank honest(memory.view, 0, 2, Patience{20'000, 0}, nullptr, Cma::kOn);
  Rank liar(memory.view, 1, 2, Patience{20'000, 0}, nullptr, Cma::kOn);
  std::thread other([&memory, &liar, address, gave_up] {
    const Line& theirs = memory.view.line(0, 1);
    while (theirs.step.load() != 1) sched_yield();
    Line& line = memory.view.line(1, 1);
    line.what = theirs.what;
    const uint64_t place = kInProcess | address;
    std::memcpy(line.data.data(), &place, sizeof place);
    if (gave_up) liar.peers.break_loan();
    line.step.store(1);
    liar.peers.wake(0);
  });
  std::vector<uint32_t> in(kind == BP_ALL_REDUCE ? 20'000 : 10'000);
  std::vector<uint32_t> out(20'000);
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = kind;
  op.dtype = BP_U32;
  op.input = {in.data(), in.size(), BP_HOST, 0};
  op.output = {out.data(), out.size(), BP_HOST, 0};
  Limit limit(Rank::kLong);
  int32_t status = BP_OK;
  try {
    honest.collectives.run(op, limit);
  } catch (const sdk::Failure& why) {
    status = why.status();
    EXPECT_EQ(why.peer_rank(), 1);
  }
  other.join();
  return status;
}

// Whoever reads where nothing can be read fails, and so does a collective that reads in no process.
TEST(Lent, HostilePlacesInProcessesAreRefused) {
  for (const uint64_t address : {UINT64_C(0), UINT64_C(4096)}) {
    for (const uint32_t kind : {BP_ALL_GATHER, BP_ALL_REDUCE}) {
      EXPECT_EQ(failure_of_reading(kind, address, false), BP_INVALID) << kind << " at " << address;
    }
  }
}

// Its memory may be gone then, which is not its fault.
TEST(Lent, WhoGaveUpBeforeItsProcessWasReadIsLost) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  EXPECT_EQ(failure_of_reading(BP_ALL_GATHER, 4096, true), BP_PEER_LOST);
}

}  // namespace
}  // namespace backplane::shm::test
