// SPDX-License-Identifier: Apache-2.0
//
// Buffers in the ranks' heaps, in all operations: the results are those of any buffers, and nothing is copied aside.
#include <numeric>

#include "heaps.hpp"

namespace backplane::shm::test {
namespace {

// How a round chooses where its buffers lie: all in heaps, or each by chance.
enum class Where { kHeap, kAny };

constexpr uint32_t kUntouched = 0xeeeeeeee;

uint64_t at_rank(int32_t rank, uint64_t round) { return static_cast<uint64_t>(rank) * 1'000'003 + round * 7919; }

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
  bool in_heap() { return where_ == Where::kHeap || random_() % 2 == 0; }
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

TEST(Lent, AnyBufferInAnyCollective) {
  for (const int32_t ranks : {2, 3, 5}) {
    on_heaps(ranks, Patience{20'000, 200'000}, [](Rank& rank) {
      std::mt19937_64 same(5);
      std::mt19937_64 own(static_cast<uint64_t>(rank.id));
      for (uint64_t round = 0; round < 30 * kEffort && !testing::Test::HasFatalFailure(); ++round) {
        const uint64_t most = 1 + same() % (same() % 3 == 0 ? 40'000 : 1'500);
        const Where where = same() % 3 == 0 ? Where::kHeap : Where::kAny;
        stumble(own);
        Round(rank, round, most, where, own).run(kKinds[same() % std::size(kKinds)]);
      }
    });
  }
}

uint64_t written(const std::byte* begin, uint64_t size) {
  return size - static_cast<uint64_t>(std::count(begin, begin + size, std::byte{0}));
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

TEST(Lent, MessagesAreFetched) {
  constexpr int32_t kRanks = 3;
  for (const Patience patience : {Patience{20'000, 200'000}, Patience{0, 0}}) {
    const Shared shared(kRanks);
    const Memory memory(kRanks);
    run_ranks(
        memory, kRanks, patience,
        [](Rank& rank) {
          const int32_t next = (rank.id + 1) % rank.size;
          const int32_t previous = (rank.id + rank.size - 1) % rank.size;
          for (uint64_t round = 0; round < 10 * kEffort; ++round) {
            const uint64_t count = 3'000 + round * round * 60;  // up to some MiB
            const Numbers out(*rank.own_heap, count);
            std::vector<uint32_t> in(count);
            for (uint64_t i = 0; i < count; ++i) out.data()[i] = static_cast<uint32_t>(at_rank(rank.id, round) + i);
            const auto receiving = rank.recv(previous, round, in.data(), count * sizeof(uint32_t));
            Rank::finish(rank.send(next, round, out.data(), count * sizeof(uint32_t)));
            out.fill(kUntouched);  // it is this rank's own again
            Rank::finish(receiving);
            for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(in[i], static_cast<uint32_t>(at_rank(previous, round) + i));
          }
        },
        shared.pools);
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      const Channel& channel = memory.view.channel((rank + 1) % kRanks, rank);
      EXPECT_EQ(written(channel.data.data(), kRingSize), 0U) << "from rank " << rank;
    }
  }
}

// Senders give up as they like: what is received is one of the messages, whole, and never what the buffer holds later.
TEST(Lent, WhoGivesUpTakesItsBufferBack) {
  on_heaps(2, Patience{20'000, 200'000}, [](Rank& rank) {
    constexpr uint64_t kCount = 600'000;
    constexpr uint32_t kRounds = 8 * kEffort;
    std::mt19937_64 random(9);
    if (rank.id == 0) {
      const Numbers data(*rank.own_heap, kCount);
      for (uint32_t round = 1; round <= kRounds; ++round) {
        data.fill(round);
        const auto work = rank.send(1, 1, data.data(), kCount * sizeof(uint32_t));
        if (round == kRounds) {
          Rank::finish(work);
        } else if (work) {
          for (uint64_t i = random() % 200; i > 0; --i) sched_yield();
          work->cancel();
        }
        data.fill(kUntouched);
      }
    } else {
      for (uint32_t got = 0; got != kRounds;) {
        std::vector<uint32_t> in(kCount);
        Rank::finish(rank.recv(0, 1, in.data(), kCount * sizeof(uint32_t), nullptr, BP_OP_SYNC));
        ASSERT_GT(in[0], got);
        got = in[0];
        ASSERT_LE(got, kRounds);
        ASSERT_TRUE(std::all_of(in.begin(), in.end(), [got](uint32_t each) { return each == got; }));
      }
    }
  });
}

// The same in one thread: the sender takes its buffer back when a part of it has been read.
TEST(Lent, WhatIsTakenBackAmidIsNotReceived) {
  constexpr uint64_t kCount = 800'000;  // fetched in several parts
  const Memory memory(2);
  const Shared shared(2);
  Rank sender(memory.view, 0, 2, Patience{20'000, 0}, &shared.pools[0]);
  Rank receiver(memory.view, 1, 2, Patience{20'000, 0}, &shared.pools[1]);
  const Numbers data(*shared.heaps[0], kCount);
  std::vector<uint32_t> in(kCount);
  data.fill(1);
  const auto sending = sender.send(1, 1, data.data(), kCount * sizeof(uint32_t));
  const auto receiving = receiver.recv(0, 1, in.data(), kCount * sizeof(uint32_t));
  receiver.messages.move_on(Look::kFull);
  sending->cancel();
  data.fill(kUntouched);
  uint32_t got = 0;
  if (receiving->wait(0)) {
    got = in[0];  // the receiver's helper was faster
  } else {
    std::thread again([&] {
      data.fill(2);
      Rank::finish(sender.send(1, 1, data.data(), kCount * sizeof(uint32_t)));
    });
    Rank::finish(receiving);
    again.join();
    got = 2;
  }
  EXPECT_TRUE(std::all_of(in.begin(), in.end(), [got](uint32_t each) { return each == got; })) << in[0];
}

// A receiver that cannot know whether what it has read was still what was sent has it sent.
TEST(Lent, WhatMayHaveBeenTakenBackIsSent) {
  constexpr uint64_t kCount = 100'000;
  const Memory memory(2);
  const Shared shared(2);
  Rank sender(memory.view, 0, 2, Patience{20'000, 0}, &shared.pools[0]);
  Rank receiver(memory.view, 1, 2, Patience{20'000, 0}, &shared.pools[1]);
  const Numbers data(*shared.heaps[0], kCount);
  std::vector<uint32_t> in(kCount);
  data.fill(1);
  Channel& channel = memory.view.channel(1, 0);
  const auto sending = sender.send(1, 1, data.data(), kCount * sizeof(uint32_t));
  channel.revoked.store(1);
  std::thread other([&] { Rank::finish(sending); });
  Rank::finish(receiver.recv(0, 1, in.data(), kCount * sizeof(uint32_t)));
  other.join();
  EXPECT_TRUE(std::all_of(in.begin(), in.end(), [](uint32_t each) { return each == 1; }));
  EXPECT_GT(written(channel.data.data(), kRingSize), 0U);
}

bool received(Rank& rank, std::vector<uint32_t>& in, int64_t timeout_ns) {
  try {
    return rank.recv(0, 1, in.data(), in.size() * sizeof in[0], nullptr, BP_OP_SYNC, timeout_ns) == nullptr;
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_TIMEOUT) << why.what();
    return false;
  }
}

// A receive that gives up amid what it fetches leaves it, whole, to the next one.
TEST(Lent, ReceivesThatGiveUpLoseNothing) {
  on_heaps(2, Patience{20'000, 0}, [](Rank& rank) {
    constexpr uint64_t kCount = 2'000'000;
    const Numbers data(*rank.own_heap, kCount);
    for (uint32_t round = 1; round <= 4; ++round) {
      if (rank.id == 0) {
        data.fill(round);
        Rank::finish(rank.send(1, 1, data.data(), kCount * sizeof(uint32_t)));
        continue;
      }
      std::vector<uint32_t> in(kCount);
      for (int64_t patience = 100'000; !received(rank, in, patience); patience *= 2)
        std::fill(in.begin(), in.end(), 0U);
      ASSERT_TRUE(std::all_of(in.begin(), in.end(), [round](uint32_t each) { return each == round; }));
    }
  });
}

// A message that is fetched does not come through the channel, too.
TEST(Lent, DataOfWhatIsFetchedIsNonsense) {
  constexpr uint64_t kSize = UINT64_C(3) << 20;  // fetched in several parts
  const Memory memory(2);
  const Shared shared(2);
  Rank honest(memory.view, 0, 2, Patience{20'000, 0}, &shared.pools[0]);
  const Rank liar(memory.view, 1, 2, Patience{20'000, 0}, &shared.pools[1]);
  Channel& channel = memory.view.channel(0, 1);
  channel.heads[0].kind_and_length = static_cast<uint32_t>(Kind::kAnnounce);
  channel.heads[0].tag = 1;
  channel.heads[0].control = {1, kSize, {1, 0}};
  channel.heads[1].kind_and_length = static_cast<uint32_t>(Kind::kData) | 100U << 8;
  channel.heads[1].control = {1, 100, {}};
  channel.heads[0].turn.store(1);
  memory.view.opened(0, 1).store(1);
  std::vector<std::byte> got(kSize);
  const auto receiving = honest.recv(1, 1, got.data(), got.size());
  channel.heads[1].turn.store(2);
  try {
    Rank::finish(receiving);
    honest.recv(1, 1, got.data(), got.size(), nullptr, BP_OP_SYNC);  // the helper had fetched all of it before
    ADD_FAILURE() << "nonsense was received";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST) << why.what();
  }
}

// A sender that names what is not its own is told apart before anything is read.
TEST(Lent, HostilePlacesAreNonsense) {
  const Memory memory(2);
  const Shared shared(2);
  Rank honest(memory.view, 0, 2, Patience{20'000, 0}, &shared.pools[0]);
  const Rank liar(memory.view, 1, 2, Patience{20'000, 0}, &shared.pools[1]);
  Channel& channel = memory.view.channel(0, 1);
  channel.heads[0].kind_and_length = static_cast<uint32_t>(Kind::kAnnounce);
  channel.heads[0].tag = 1;
  channel.heads[0].control = {1, 100'000, {kHeap - 99'998, 0}};
  channel.heads[0].turn.store(1);
  memory.view.opened(0, 1).store(1);
  std::vector<std::byte> got(100'000);
  try {
    honest.recv(1, 1, got.data(), got.size(), nullptr, BP_OP_SYNC);
    ADD_FAILURE() << "bytes beyond the heap were received";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST) << why.what();
    EXPECT_NE(std::string(why.what()).find("nonsense"), std::string::npos) << why.what();
  }
}

}  // namespace
}  // namespace backplane::shm::test
