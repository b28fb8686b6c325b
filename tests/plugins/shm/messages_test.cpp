// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "ranks.hpp"

namespace backplane::shm::test {
namespace {

constexpr WaitPolicy kImpatient = {0, 0};
constexpr WaitPolicy kPatient = {20'000, 200'000};
constexpr WaitPolicy kYieldOnly = {0, 200'000};  // does not spin

uint64_t size_of(uint64_t name) {
  std::mt19937_64 random(name);
  constexpr uint64_t kMost[] = {1, 48, 49, 3000, kEagerLimit, kEagerLimit + 1, 100'000};
  return random() % (kMost[random() % 7] + 1);
}

// Heads in the channel of one rank to the other.
size_t heads(const View& view, int32_t receiver, int32_t sender) {
  const auto& all = view.channel(receiver, sender).heads;
  return static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [](const Head& each) { return each.sequence != 0; }));
}

struct Cost {
  uint64_t size;
  size_t there;
  size_t back;
};

void expect_cost(const Cost& cost, int32_t ranks, const WaitPolicy& policy) {
  const Memory memory(ranks);
  run_ranks(memory, ranks, policy, [&cost](Rank& rank) {
    std::vector<std::byte> bytes(cost.size);
    if (rank.id == 1) Rank::finish(rank.send(0, 3, bytes.data(), bytes.size()));
    if (rank.id == 0) Rank::finish(rank.recv(1, 3, bytes.data(), bytes.size()));
  });
  EXPECT_EQ(heads(memory.view, 0, 1), cost.there) << cost.size << " bytes, " << ranks << " ranks";
  EXPECT_EQ(heads(memory.view, 1, 0), cost.back) << cost.size << " bytes, " << ranks << " ranks";
  for (int32_t other = 2; other < ranks; ++other) EXPECT_EQ(heads(memory.view, 0, other), 0U);
}

// The cost depends on the size only: one head for a small message; for a large one also the announcement, the answer
// and one head per piece. What is small depends on whether ranks spin.
TEST(Messages, HaveTheDocumentedCost) {
  for (const int32_t ranks : {2, 5}) {
    for (const Cost& cost :
         {Cost{0, 1, 0}, Cost{kHeadData, 1, 0}, Cost{kHeadData + 1, 1, 0}, Cost{kEagerLimit, 1, 0},
          Cost{kEagerLimit + 1, 2, 1}, Cost{kPiece, 2, 1}, Cost{5 * kPiece, 6, 1}, Cost{20 * kPiece + 1, 22, 1}}) {
      expect_cost(cost, ranks, kPatient);
    }
    for (const Cost& cost : {Cost{kEagerLimit + 1, 1, 0}, Cost{kMaxEager, 1, 0}, Cost{kMaxEager + 1, 6, 1}}) {
      expect_cost(cost, ranks, kYieldOnly);
    }
  }
}

// All ranks send to all, and receive in another order.
void all_to_all_messages(Rank& rank, uint64_t rounds) {
  std::mt19937_64 random(static_cast<uint64_t>(rank.id));
  for (uint64_t round = 0; round < rounds; ++round) {
    struct One {
      int32_t peer;
      uint64_t tag;
      std::vector<std::byte> bytes;
      std::unique_ptr<sdk::Work> work;
    };
    std::vector<One> out;
    std::vector<One> in;
    const auto name = [round](int32_t from, int32_t to, uint64_t tag) {
      return ((round * 64 + static_cast<uint64_t>(from)) * 64 + static_cast<uint64_t>(to)) * 64 + tag;
    };
    for (int32_t peer = 0; peer < rank.size; ++peer) {
      for (uint64_t tag = 0; tag < 6; ++tag) {
        out.push_back({peer, tag, std::vector<std::byte>(size_of(name(rank.id, peer, tag))), nullptr});
        fill(out.back().bytes, name(rank.id, peer, tag));
        in.push_back({peer, tag, std::vector<std::byte>(100'001), nullptr});
      }
    }
    std::shuffle(out.begin(), out.end(), random);
    std::shuffle(in.begin(), in.end(), random);
    std::vector<bp_result> results(in.size(), bp_result{sizeof(bp_result), -1, 0, 0});
    for (size_t i = 0; i < out.size(); ++i) {
      yield_sometimes(random);
      out[i].work = rank.send(out[i].peer, out[i].tag, out[i].bytes.data(), out[i].bytes.size());
      in[i].work = rank.recv(in[i].peer, in[i].tag, in[i].bytes.data(), in[i].bytes.size(), &results[i]);
    }
    for (size_t i = 0; i < in.size(); ++i) {
      Rank::finish(in[i].work);
      const uint64_t expected = name(in[i].peer, rank.id, in[i].tag);
      ASSERT_EQ(results[i].source, in[i].peer);
      ASSERT_EQ(results[i].bytes, size_of(expected));
      ASSERT_TRUE(is_filled(in[i].bytes, results[i].bytes, expected));
    }
    for (One& one : out) Rank::finish(one.work);
  }
}

TEST(Messages, AllToAllAmongFourRanks) {
  for (const WaitPolicy& policy : {kPatient, kYieldOnly, kImpatient}) {
    on_ranks(4, policy, [](Rank& rank) { all_to_all_messages(rank, 3 * kEffort); });
  }
}

void talk(Rank& rank) {
  std::vector<std::thread> threads;
  for (uint64_t tag = 0; tag < 3; ++tag) {
    threads.emplace_back([&rank, tag] {
      for (uint64_t i = 0; i < 100; ++i) {
        std::vector<std::byte> out(i * 300);
        std::vector<std::byte> in(i * 300);
        fill(out, tag * 1000 + i);
        const auto sending = rank.send(1 - rank.id, tag, out.data(), out.size());
        Rank::finish(rank.recv(1 - rank.id, tag, in.data(), in.size(), nullptr, BP_OP_SYNC));
        Rank::finish(sending);
        ASSERT_TRUE(is_filled(in, in.size(), tag * 1000 + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Messages, SeveralThreadsOfOneRank) {
  for (const WaitPolicy& policy : {kPatient, kYieldOnly}) on_ranks(2, policy, talk);
}

// With more ranks than processors: later tags first, older receives, too small buffers, large messages.
TEST(Messages, ReceiveWithoutSpinning) {
  on_ranks(3, kYieldOnly, [](Rank& rank) {
    const int32_t to = (rank.id + 1) % 3;
    const int32_t from = (rank.id + 2) % 3;
    const std::vector<std::byte> room(100'001);
    for (uint64_t round = 0; round < 20 * kEffort; ++round) {
      std::vector<std::vector<std::byte>> out(4);
      std::vector<std::unique_ptr<sdk::Work>> sending;
      for (uint64_t tag = 0; tag < 4; ++tag) {
        out[tag].resize(std::max<uint64_t>(1, size_of(round * 4 + tag)));
        fill(out[tag], round * 4 + tag);
        sending.push_back(rank.send(to, tag, out[tag].data(), out[tag].size()));
      }
      const auto get = [&](uint64_t tag, uint64_t flags, std::vector<std::byte>& in, bp_result& result) {
        return rank.recv(from, tag, in.data(), in.size(), &result, flags);
      };
      std::vector<std::vector<std::byte>> in(4, room);
      std::vector<bp_result> results(4, bp_result{sizeof(bp_result), -1, 0, 0});
      const bool is_early = round % 2 == 0;
      const auto early = is_early ? get(3, 0, in[3], results[3]) : nullptr;
      for (const uint64_t tag : round % 3 == 0 ? std::array{1U, 0U, 2U} : std::array{0U, 1U, 2U}) {
        if (tag == 2) in[2].clear();
        try {
          Rank::finish(get(tag, BP_OP_SYNC, in[tag], results[tag]));
          EXPECT_NE(tag, 2U) << "a message arrived that did not fit";
        } catch (const sdk::Failure& why) {
          EXPECT_EQ(tag, 2U) << why.what();
          EXPECT_EQ(why.status(), BP_INVALID);
        }
      }
      is_early ? Rank::finish(early) : Rank::finish(get(3, BP_OP_SYNC, in[3], results[3]));
      for (const uint64_t tag : {0U, 1U, 3U}) {
        ASSERT_EQ(results[tag].bytes, std::max<uint64_t>(1, size_of(round * 4 + tag)));
        ASSERT_TRUE(is_filled(in[tag], results[tag].bytes, round * 4 + tag));
      }
      for (const auto& each : sending) Rank::finish(each);
    }
  });
}

// A receive that is cancelled while a large message arrives leaves it to the next one.
TEST(Messages, CancelledReceivesLoseNothing) {
  on_ranks(2, kImpatient, [](Rank& rank) {
    constexpr size_t kSize = size_t{3} << 20;
    for (uint64_t round = 0; round < 10; ++round) {
      std::vector<std::byte> bytes(kSize);
      if (rank.id == 0) {
        fill(bytes, round);
        Rank::finish(rank.send(1, round, bytes.data(), kSize));
        continue;
      }
      std::mt19937_64 random(round);
      std::vector<std::byte> abandoned(kSize);
      for (bool is_done = false; !is_done;) {
        const auto work = rank.recv(0, round, abandoned.data(), kSize);
        for (uint64_t i = random() % 4; work && i > 0; --i) static_cast<void>(work->wait(20'000));
        if (random() % 5 == 0) {
          Rank::finish(work);
          bytes = abandoned;
          is_done = true;
        } else if (work) {
          work->cancel();
          try {
            is_done = work->wait(0);
            if (is_done) bytes = abandoned;
          } catch (const sdk::Failure& why) {
            ASSERT_EQ(why.status(), BP_CANCELLED);
          }
        } else {
          bytes = abandoned;
          is_done = true;
        }
        if (!is_done) std::fill(abandoned.begin(), abandoned.end(), std::byte{0xee});
      }
      ASSERT_TRUE(is_filled(bytes, kSize, round));
    }
  });
}

void expect_names_of_who_left(const WaitPolicy& policy) {
  const Memory memory(3);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int32_t i = 0; i < 3; ++i) ranks.push_back(std::make_unique<Rank>(memory.view, i, 3, policy));
  char byte = 'x';
  ranks[1]->send(0, 1, &byte, 1);
  ranks[1].reset();
  char got = 0;
  Rank::finish(ranks[0]->recv(1, 1, &got, 1));  // sent before it left
  EXPECT_EQ(got, 'x');
  try {
    ranks[0]->recv(1, 2, &got, 1, nullptr, BP_OP_SYNC);
    ADD_FAILURE() << "a receive from a rank that has left succeeded";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST);
    EXPECT_EQ(why.peer_rank(), 1);
  }
  ranks[2]->peers.abort(sdk::Failure(BP_PEER_LOST, "rank 1 is lost: its process ended", 1));
  try {
    ranks[0]->recv(2, 2, &got, 1, nullptr, BP_OP_SYNC);
    ADD_FAILURE() << "a receive from a rank that was aborted succeeded";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST);
    EXPECT_EQ(why.peer_rank(), 1) << why.what();
    EXPECT_NE(std::string(why.what()).find("rank 1 is lost"), std::string::npos);
  }
}

TEST(Messages, NameARankThatLeft) {
  for (const WaitPolicy& policy : {kPatient, kYieldOnly}) expect_names_of_who_left(policy);
}

// A receive that is too small belongs to its waiter as soon as it has failed, while another thread answers the sender.
TEST(Messages, TooSmallReceivesFail) {
  on_ranks(2, kPatient, [](Rank& rank) {
    std::vector<std::thread> threads;
    for (uint64_t tag = 0; tag < 2; ++tag) {
      threads.emplace_back([&rank, tag] {
        const std::vector<std::byte> large(kEagerLimit + 1);
        for (uint64_t i = 0; i < 30 * kEffort; ++i) {
          if (rank.id == 0) {
            Rank::finish(rank.send(1, tag, large.data(), large.size(), BP_OP_SYNC));
            continue;
          }
          char small = 0;
          try {
            rank.recv(0, tag, &small, 1, nullptr, BP_OP_SYNC);
            ADD_FAILURE() << "a message was received into a buffer that is too small";
          } catch (const sdk::Failure& why) {
            EXPECT_EQ(why.status(), BP_INVALID) << why.what();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// Cancelled sends that never found room return their window space.
TEST(Messages, CancelledSendsReturnWindowSpace) {
  const Memory memory(2);
  Rank sender(memory.view, 0, 2, kPatient);
  Rank receiver(memory.view, 1, 2, kPatient);
  const std::vector<std::byte> bytes(kHeadData);
  for (uint32_t i = 0; i < kHeads; ++i) ASSERT_EQ(sender.send(1, 1, bytes.data(), bytes.size()), nullptr);
  for (uint64_t i = 0; i < kWindow / (kHeadData + kOverhead); ++i) {
    const auto work = sender.send(1, 1, bytes.data(), bytes.size());
    ASSERT_NE(work, nullptr);
    work->cancel();
  }
  receiver.messages.poll(Poll::kFull);  // makes room without taking messages
  EXPECT_EQ(sender.send(1, 1, bytes.data(), bytes.size()), nullptr);
}

// Malformed data from a malicious rank do not affect others.
TEST(Messages, MalformedDataLosesOnlyItsSender) {
  const Memory memory(3);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int32_t i = 0; i < 3; ++i) ranks.push_back(std::make_unique<Rank>(memory.view, i, 3, kPatient));
  Channel& channel = memory.view.channel(0, 1);
  channel.heads[0].kind_and_length =
      static_cast<uint32_t>(Kind::kData) | 100U << 8;  // of a message that was never announced
  channel.heads[0].control = {77, 100, {}};
  channel.heads[0].sequence.store(1);
  memory.view.opened(0, 1).store(1);
  char got = 0;
  try {
    ranks[0]->recv(1, 1, &got, 1, nullptr, BP_OP_SYNC);
    ADD_FAILURE() << "malformed data were received";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST);
    EXPECT_NE(std::string(why.what()).find("malformed data"), std::string::npos);
  }
  char byte = 'y';
  ranks[2]->send(0, 1, &byte, 1);
  Rank::finish(ranks[0]->recv(2, 1, &got, 1));
  EXPECT_EQ(got, 'y');
}

}  // namespace
}  // namespace backplane::shm::test
