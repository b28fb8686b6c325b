// SPDX-License-Identifier: Apache-2.0
//
// Messages read in place, in heaps or processes. A buffer belongs to its owner as soon as the send ends.
#include "heaps.hpp"

namespace backplane::shm::test {
namespace {

// Parameter: true for ordinary memory read in the process, false for heaps.
class ZeroCopyMessages : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  }
  // Ranks with memory of the parameter's kind.
  struct Ranks {
    explicit Ranks(int32_t count) : memory(count), shared(count) {}
    Rank make(int32_t rank) const {
      const Pools* const pools = GetParam() ? nullptr : &shared.pools[static_cast<size_t>(rank)];
      return {memory.view, rank, 2, WaitPolicy{20'000, 0}, pools, GetParam() ? Cma::kOn : Cma::kOff};
    }
    template <typename Body>
    void run(int32_t ranks, const WaitPolicy& policy, const Body& body) const {
      run_ranks(memory, ranks, policy, body, GetParam() ? std::vector<Pools>() : shared.pools,
                GetParam() ? Cma::kOn : Cma::kOff);
    }
    static uint64_t location_of(const Rank& rank, const std::byte* data, uint64_t size) {
      return rank.own_heap == nullptr ? location_in_process(data) : rank.own_heap->location_of(data, size);
    }
    const Memory memory;
    const Shared shared;
  };
};
INSTANTIATE_TEST_SUITE_P(Memory, ZeroCopyMessages, testing::Bool(),
                         [](const auto& test) { return test.param ? "OfTheProcess" : "OfTheHeap"; });

// Whether rank 0 has answered rank 1 in head i: send (size 1), or done (0).
bool has_answered(const Memory& memory, size_t i, uint64_t size) {
  const Head& head = memory.view.channel(1, 0).heads[i];
  return head.kind_and_length == static_cast<uint32_t>(Kind::kReady) && head.control.size == size;
}

// Simulates a thread that sleeps on a rank's doorbell and must be woken.
class Sleeper {
 public:
  Sleeper(const Memory& memory, int32_t rank) : doorbell_(memory.view.member(rank).doorbell) {
    doorbell_.sleepers.fetch_add(1);
  }
  ~Sleeper() { doorbell_.sleepers.fetch_sub(1); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  uint32_t rings() const { return doorbell_.rings.load() - before_; }

 private:
  Doorbell& doorbell_;
  const uint32_t before_ = doorbell_.rings.load();
};

uint64_t at_rank(int32_t rank, uint64_t round) { return static_cast<uint64_t>(rank) * 1'000'003 + round * 7919; }

TEST_P(ZeroCopyMessages, AreReadInPlace) {
  constexpr int32_t kRanks = 3;
  for (const WaitPolicy policy : {WaitPolicy{20'000, 200'000}, WaitPolicy{0, 0}}) {
    const Ranks ranks(kRanks);
    ranks.run(kRanks, policy, [](Rank& rank) {
      const int32_t next = (rank.id + 1) % rank.size;
      const int32_t previous = (rank.id + rank.size - 1) % rank.size;
      for (uint64_t round = 0; round < 10 * kEffort; ++round) {
        const uint64_t count = 3'000 + round * round * 60;  // up to some MiB
        const Numbers out(rank.own_heap, count);
        std::vector<uint32_t> in(count);
        for (uint64_t i = 0; i < count; ++i) out.data()[i] = static_cast<uint32_t>(at_rank(rank.id, round) + i);
        const auto receiving = rank.recv(previous, round, in.data(), count * sizeof(uint32_t));
        Rank::finish(rank.send(next, round, out.data(), count * sizeof(uint32_t)));
        out.fill(kUntouched);  // owned by this rank again
        Rank::finish(receiving);
        for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(in[i], static_cast<uint32_t>(at_rank(previous, round) + i));
      }
    });
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      const Ring ring = ranks.memory.view.ring((rank + 1) % kRanks, rank);
      EXPECT_EQ(written(ring.data, ring.size), 0U) << "from rank " << rank;
    }
  }
}

// Senders cancel at random. Each received message is complete, and never holds later contents of the buffer.
TEST_P(ZeroCopyMessages, CancelledSendsRevokeTheirBuffers) {
  Ranks(2).run(2, WaitPolicy{20'000, 200'000}, [](Rank& rank) {
    constexpr uint64_t kCount = 600'000;
    constexpr uint32_t kRounds = 8 * kEffort;
    std::mt19937_64 random(9);
    if (rank.id == 0) {
      const Numbers data(rank.own_heap, kCount);
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

// The same on one thread: the sender revokes its buffer after a part has been read.
TEST_P(ZeroCopyMessages, BufferRevokedDuringAReadIsNotReceived) {
  constexpr uint64_t kCount = 800'000;  // read in several parts
  const Ranks ranks(2);
  Rank sender = ranks.make(0);
  Rank receiver = ranks.make(1);
  const Numbers data(sender.own_heap, kCount);
  std::vector<uint32_t> in(kCount);
  data.fill(1);
  const auto sending = sender.send(1, 1, data.data(), kCount * sizeof(uint32_t));
  const auto receiving = receiver.recv(0, 1, in.data(), kCount * sizeof(uint32_t));
  receiver.messages.poll(Poll::kFull);
  sending->cancel();
  data.fill(kUntouched);
  uint32_t got = 0;
  if (receiving->wait(0)) {
    got = in[0];  // the receiver's progress thread was faster
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

// If a buffer may have been revoked, the receiver asks for the message.
TEST_P(ZeroCopyMessages, PossiblyRevokedMessagesAreSent) {
  constexpr uint64_t kCount = 100'000;
  const Ranks ranks(2);
  Rank sender = ranks.make(0);
  Rank receiver = ranks.make(1);
  const Numbers data(sender.own_heap, kCount);
  std::vector<uint32_t> in(kCount);
  data.fill(1);
  Channel& channel = ranks.memory.view.channel(1, 0);
  const auto sending = sender.send(1, 1, data.data(), kCount * sizeof(uint32_t));
  channel.revoked.store(1);
  std::thread other([&] { Rank::finish(sending); });
  Rank::finish(receiver.recv(0, 1, in.data(), kCount * sizeof(uint32_t)));
  other.join();
  EXPECT_TRUE(std::all_of(in.begin(), in.end(), [](uint32_t each) { return each == 1; }));
  const Ring ring = ranks.memory.view.ring(1, 0);
  EXPECT_GT(written(ring.data, ring.size), 0U);
}

// An exposure that was revoked before the receive is not read.
TEST_P(ZeroCopyMessages, RevokedExposuresAreNotRead) {
  constexpr uint64_t kCount = 100'000;
  const Ranks ranks(2);
  Rank receiver = ranks.make(0);
  const Rank sender = ranks.make(1);
  const Numbers data(sender.own_heap, kCount);
  data.fill(7);
  ranks.memory.view.channel(0, 1).revoked.store(1);
  announce(ranks.memory, 0, kCount * sizeof(uint32_t),
           Ranks::location_of(sender, data.bytes(), kCount * sizeof(uint32_t)));
  std::vector<uint32_t> in(kCount);
  const auto receiving = receiver.recv(1, 1, in.data(), kCount * sizeof(uint32_t));
  receiver.messages.poll(Poll::kFull);
  EXPECT_EQ(std::count(in.begin(), in.end(), 0U), static_cast<ptrdiff_t>(kCount));
  EXPECT_EQ(ranks.memory.view.channel(1, 0).heads[0].sequence.load(), 1U);
  EXPECT_TRUE(has_answered(ranks.memory, 0, 1));
  receiving->cancel();
}

// A receive may match an announced message while all threads sleep.
TEST_P(ZeroCopyMessages, SleepersAreWokenToRead) {
  constexpr uint64_t kCount = 100'000;
  const Ranks ranks(2);
  Rank sender = ranks.make(0);
  Rank receiver = ranks.make(1);
  const Numbers data(sender.own_heap, kCount);
  std::vector<uint32_t> in(kCount);
  const auto sending = sender.send(1, 1, data.data(), kCount * sizeof(uint32_t));
  receiver.messages.poll(Poll::kFull);
  {
    const Sleeper sleeper(ranks.memory, 1);
    const auto receiving = receiver.recv(0, 1, in.data(), kCount * sizeof(uint32_t));
    EXPECT_GT(sleeper.rings(), 0U);
    Rank::finish(receiving);
  }
  Rank::finish(sending);
}

bool received(Rank& rank, std::vector<uint32_t>& in, int64_t timeout_ns) {
  try {
    return rank.recv(0, 1, in.data(), in.size() * sizeof in[0], nullptr, BP_OP_SYNC, timeout_ns) == nullptr;
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_TIMEOUT) << why.what();
    return false;
  }
}

// A receive that is cancelled while it reads leaves the message to the next one.
TEST_P(ZeroCopyMessages, CancelledReceivesLoseNothing) {
  Ranks(2).run(2, WaitPolicy{20'000, 0}, [](Rank& rank) {
    constexpr uint64_t kCount = 2'000'000;
    const Numbers data(rank.own_heap, kCount);
    for (uint32_t round = 1; round <= 4; ++round) {
      if (rank.id == 0) {
        data.fill(round);
        Rank::finish(rank.send(1, 1, data.data(), kCount * sizeof(uint32_t)));
        continue;
      }
      std::vector<uint32_t> in(kCount);
      for (int64_t policy = 100'000; !received(rank, in, policy); policy *= 2) {
        ASSERT_LT(policy, Rank::kLong) << "the message was lost with the cancelled receive";
        std::fill(in.begin(), in.end(), 0U);
      }
      ASSERT_TRUE(std::all_of(in.begin(), in.end(), [round](uint32_t each) { return each == round; }));
    }
  });
}

// The sender learns of a receipt before the receiver does, because the receiver may then leave. There is no room for
// the answer until the sender, which is simulated, reads its channel.
TEST_P(ZeroCopyMessages, ReceivedMessagesHaveBeenAnswered) {
  for (const uint64_t count : {UINT64_C(0), UINT64_C(100'000)}) {
    const Ranks ranks(2);
    Rank receiver = ranks.make(0);
    const Rank sender = ranks.make(1);
    for (size_t i = 0; i < kHeads; ++i) EXPECT_EQ(receiver.send(1, 2, &i, sizeof i), nullptr);
    const Numbers data(sender.own_heap, 100'000);
    data.fill(7);
    const uint64_t place = count == 0 ? 0 : Ranks::location_of(sender, data.bytes(), count * sizeof(uint32_t));
    announce(ranks.memory, 0, count * sizeof(uint32_t), place);
    std::vector<uint32_t> in(count);
    const auto gives_up = [&receiver, &in, count] {
      receiver.recv(1, 1, in.data(), count * sizeof(uint32_t), nullptr, BP_OP_SYNC, 1'000'000);
    };
    EXPECT_EQ(status_of(gives_up), BP_TIMEOUT);
    std::fill(in.begin(), in.end(), 0U);
    const auto receiving = receiver.recv(1, 1, in.data(), count * sizeof(uint32_t));
    ASSERT_NE(receiving, nullptr);
    receiver.messages.poll(Poll::kFull);
    EXPECT_FALSE(receiving->wait(0));
    Channel& back = ranks.memory.view.channel(1, 0);
    EXPECT_EQ(back.blocked.load(), 1U);
    back.heads_read.store(1);
    receiver.peers.wake(0);
    Rank::finish(receiving);
    EXPECT_EQ(back.heads[0].sequence.load(), kHeads + 1);
    EXPECT_TRUE(has_answered(ranks.memory, 0, 0));
    EXPECT_EQ(std::count(in.begin(), in.end(), 7U), static_cast<ptrdiff_t>(count));
  }
}

// A message read in place must not arrive through the channel as well.
TEST_P(ZeroCopyMessages, DataOfAMessageReadInPlaceIsMalformed) {
  constexpr uint64_t kSize = UINT64_C(3) << 20;  // read in several parts
  const Ranks ranks(2);
  Rank honest = ranks.make(0);
  const Rank forger = ranks.make(1);
  Channel& channel = ranks.memory.view.channel(0, 1);
  const Numbers theirs(forger.own_heap, kSize / sizeof(uint32_t));
  announce(ranks.memory, 0, kSize, Ranks::location_of(forger, theirs.bytes(), kSize));
  channel.heads[1].kind_and_length = static_cast<uint32_t>(Kind::kData) | 100U << 8;
  channel.heads[1].control = {1, 100, {}};
  std::vector<std::byte> got(kSize);
  const auto receiving = honest.recv(1, 1, got.data(), got.size());
  channel.heads[1].sequence.store(2);
  try {
    Rank::finish(receiving);
    honest.recv(1, 1, got.data(), got.size(), nullptr, BP_OP_SYNC);  // the progress thread had read all of it before
    ADD_FAILURE() << "malformed data were received";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST) << why.what();
  }
}

// A sender that announces memory outside its heap is rejected before anything is read.
TEST(ZeroCopy, ForgedLocationsAreMalformed) {
  const Memory memory(2);
  const Shared shared(2);
  Rank honest(memory.view, 0, 2, WaitPolicy{20'000, 0}, &shared.pools[0]);
  const Rank forger(memory.view, 1, 2, WaitPolicy{20'000, 0}, &shared.pools[1]);
  announce(memory, 0, 100'000, kHeap - 99'998);
  std::vector<std::byte> got(100'000);
  try {
    honest.recv(1, 1, got.data(), got.size(), nullptr, BP_OP_SYNC);
    ADD_FAILURE() << "bytes beyond the heap were received";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST) << why.what();
    EXPECT_NE(std::string(why.what()).find("malformed data"), std::string::npos) << why.what();
  }
}

// A sender that announces an unreadable address is asked to send.
TEST(ZeroCopy, UnreadableMessagesAreSent) {
  constexpr uint64_t kSize = 100'000;
  for (const uint64_t address : {UINT64_C(0), UINT64_C(1), (UINT64_C(1) << 56) - 1}) {
    const Memory memory(2);
    Rank honest(memory.view, 0, 2, WaitPolicy{20'000, 0}, nullptr, Cma::kOn);
    const Rank forger(memory.view, 1, 2, WaitPolicy{20'000, 0}, nullptr, Cma::kOn);
    announce(memory, 0, kSize, kInProcess | address);
    std::vector<std::byte> got(kSize);
    const auto receiving = honest.recv(1, 1, got.data(), got.size());
    honest.messages.poll(Poll::kFull);
    EXPECT_EQ(memory.view.channel(1, 0).heads[0].sequence.load(), 1U);
    EXPECT_TRUE(has_answered(memory, 0, 1));
    receiving->cancel();
  }
}

// After a failed read there may be more to read, without another ring.
TEST(ZeroCopy, FailedReadsWakeSleepers) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  constexpr uint64_t kSize = 100'000;
  const Memory memory(2);
  Rank honest(memory.view, 0, 2, WaitPolicy{20'000, 0}, nullptr, Cma::kOn);
  const Rank forger(memory.view, 1, 2, WaitPolicy{20'000, 0}, nullptr, Cma::kOn);
  std::vector<std::byte> got(kSize);
  std::vector<std::unique_ptr<sdk::Work>> receiving;
  for (int i = 0; i < 3; ++i) receiving.push_back(honest.recv(1, 1, got.data(), got.size()));
  const Sleeper sleeper(memory, 0);
  for (const size_t i : {2U, 1U, 0U}) announce(memory, i, kSize, kInProcess | 1);  // rejected at once
  const auto all_are_answered = [&memory, &honest] {
    honest.messages.poll(Poll::kFull);
    return memory.view.channel(1, 0).heads[2].sequence.load() == 3;
  };
  EXPECT_TRUE(eventually(all_are_answered)) << "an unreadable message was not requested";
  EXPECT_TRUE(eventually([&sleeper] { return sleeper.rings() >= 2; })) << "before the second, and before the third";
  for (const auto& each : receiving) each->cancel();
}

// Messages that are read and messages that are staged are in flight together.
TEST(ZeroCopy, MessagesOfAllSizesArrive) {
  run_ranks(
      Memory(2), 2, WaitPolicy{20'000, 200'000},
      [](Rank& rank) {
        for (const uint64_t count : {UINT64_C(3'000), UINT64_C(30'000), UINT64_C(300'000)}) {
          for (uint64_t round = 0; round < 12; ++round) {
            const std::vector<uint32_t> out(count, static_cast<uint32_t>(at_rank(rank.id, round)));
            std::vector<uint32_t> in(count);
            const auto receiving = rank.recv(1 - rank.id, round, in.data(), count * sizeof(uint32_t));
            Rank::finish(rank.send(1 - rank.id, round, out.data(), count * sizeof(uint32_t)));
            Rank::finish(receiving);
            ASSERT_EQ(in, std::vector<uint32_t>(count, static_cast<uint32_t>(at_rank(1 - rank.id, round))));
          }
        }
      },
      {}, Cma::kAuto);
}

}  // namespace
}  // namespace backplane::shm::test
