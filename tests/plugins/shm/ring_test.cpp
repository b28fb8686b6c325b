// SPDX-License-Identifier: Apache-2.0
#include "ring.hpp"

#include "fabric.hpp"

namespace backplane::shm::test {
namespace {

struct Pair {
  Memory memory{2};
  Channel& channel = memory.view.channel(1, 0);
  std::atomic<uint32_t>& opened = memory.view.opened(1, 0);
  Outbox out{channel, opened, false};
  Inbox in{channel, opened, false};
};

uint64_t length_of(uint64_t number) {
  std::mt19937_64 random(number);
  const uint64_t kind = random() % 4;
  return kind < 2 ? random() % (kHeadData + 1) : kind == 2 ? random() % (kEagerLimit + 1) : random() % (kPiece + 1);
}

void put(Pair& pair, uint64_t number, std::mt19937_64& random) {
  std::vector<std::byte> bytes(length_of(number));
  fill(bytes, number);
  const auto put_once = [&] {
    if (bytes.size() <= kHeadData) return pair.out.put_inline(number, bytes.data(), bytes.size());
    return pair.out.put_piece(Kind::kData, number, number, bytes.data(), bytes.size());
  };
  while (!put_once()) sched_yield();
  stumble(random);
}

TEST(Ring, CarriesEverythingInOrder) {
  Pair pair;
  pair.out.open();
  const uint64_t count = 2000 * kEffort;
  std::thread writer([&pair, count] {
    std::mt19937_64 random(1);
    for (uint64_t number = 1; number <= count; ++number) put(pair, number, random);
  });
  std::mt19937_64 random(2);
  Arrival arrival;
  for (uint64_t number = 1; number <= count;) {
    const Inbox::Look look = pair.in.look(arrival);
    ASSERT_NE(look, Inbox::Look::kNonsense);
    if (look == Inbox::Look::kNothing) {
      sched_yield();
      continue;
    }
    ASSERT_EQ(arrival.tag, number);
    ASSERT_EQ(arrival.length, length_of(number));
    for (uint64_t i = 0; i < arrival.length; ++i) ASSERT_EQ(arrival.data[i], byte_of(number, i)) << "of " << number;
    pair.in.pop();
    if (arrival.kind == Kind::kInline) pair.in.give_credit(arrival.length);
    if (random() % 3 == 0 || arrival.length > kEagerLimit) pair.in.release();
    if (random() % 64 == 0) sched_yield();
    ++number;
    if (number % kHeads == 0) pair.in.release();
  }
  pair.in.release();
  writer.join();
}

TEST(Ring, SaysThatTheSenderWaits) {
  Pair pair;
  pair.out.open();
  uint32_t count = 0;
  while (pair.out.put_inline(count, nullptr, 0)) ++count;
  EXPECT_EQ(count, kHeads);
  Arrival arrival;
  ASSERT_EQ(pair.in.look(arrival), Inbox::Look::kSomething);
  pair.in.pop();
  EXPECT_TRUE(pair.in.release());
  EXPECT_FALSE(pair.in.release());
  EXPECT_TRUE(pair.out.put_inline(count, nullptr, 0));
  EXPECT_FALSE(pair.out.put_inline(count, nullptr, 0));
}

TEST(Ring, CountsWhatTheSenderDoesNotKnowToBeRead) {
  Pair pair;
  pair.out.open();
  const std::vector<std::byte> bytes(kPiece);
  Arrival arrival;
  const auto pass = [&pair, &bytes, &arrival](uint64_t size) {
    ASSERT_TRUE(pair.out.put_piece(Kind::kData, 1, 1, bytes.data(), size));
    ASSERT_EQ(pair.in.look(arrival), Inbox::Look::kSomething);
    pair.in.pop();
  };
  EXPECT_EQ(pair.in.unreleased(), 0U);
  ASSERT_NO_FATAL_FAILURE(pass(kPiece));
  ASSERT_NO_FATAL_FAILURE(pass(100));
  EXPECT_EQ(pair.in.unreleased(), kPiece + 128);
  pair.in.release();
  EXPECT_EQ(pair.in.unreleased(), 0U);
}

TEST(Ring, GivesCreditForWhatWasTaken) {
  Pair pair;
  pair.out.open();
  EXPECT_FALSE(pair.out.take_credit(kEagerLimit + 1));
  uint64_t count = 0;
  while (pair.out.take_credit(1000)) ++count;
  EXPECT_EQ(count, kWindow / (1000 + kOverhead));
  pair.in.give_credit(1000);
  EXPECT_TRUE(pair.out.take_credit(1000));
  EXPECT_FALSE(pair.out.take_credit(1000));
}

TEST(Ring, TakesCreditBackForWhatWasNotSent) {
  Pair pair;
  while (pair.out.take_credit(1000)) {
  }
  pair.out.return_credit(1000);
  EXPECT_TRUE(pair.out.take_credit(1000));
  EXPECT_FALSE(pair.out.take_credit(1000));
}

TEST(Ring, RefusesWhatExceedsTheWindow) {
  Pair pair;
  pair.out.open();
  const char bytes[kHeadData] = {};
  Arrival arrival;
  for (uint64_t count = 0; count < kWindow / (kHeadData + kOverhead); ++count) {
    ASSERT_TRUE(pair.out.put_inline(1, bytes, kHeadData));
    ASSERT_EQ(pair.in.look(arrival), Inbox::Look::kSomething);
    pair.in.pop();
    pair.in.release();
  }
  ASSERT_TRUE(pair.out.put_inline(1, bytes, kHeadData));
  EXPECT_EQ(pair.in.look(arrival), Inbox::Look::kNonsense);
  pair.in.give_credit(kHeadData);
  EXPECT_EQ(pair.in.look(arrival), Inbox::Look::kSomething);
}

// A peer may write what it likes; nothing is believed that would reach outside.
TEST(Ring, RefusesNonsense) {
  const auto look_at = [](uint32_t word) {
    Pair pair;
    pair.out.open();
    pair.channel.heads[0].kind_and_length = word;
    pair.channel.heads[0].turn.store(1);
    Arrival arrival;
    return pair.in.look(arrival);
  };
  const auto word = [](Kind kind, uint64_t length) {
    return static_cast<uint32_t>(kind) | static_cast<uint32_t>(length << 8);
  };
  EXPECT_EQ(look_at(word(Kind::kInline, kHeadData)), Inbox::Look::kSomething);
  EXPECT_EQ(look_at(word(Kind::kInline, kHeadData + 1)), Inbox::Look::kNonsense);
  EXPECT_EQ(look_at(word(Kind::kEager, kEagerLimit + 1)), Inbox::Look::kNonsense);
  EXPECT_EQ(look_at(word(Kind::kData, kPiece + 1)), Inbox::Look::kNonsense);
  EXPECT_EQ(look_at(word(Kind::kData, 0xffffff)), Inbox::Look::kNonsense);
  EXPECT_EQ(look_at(0), Inbox::Look::kNonsense);
  EXPECT_EQ(look_at(99), Inbox::Look::kNonsense);
}

}  // namespace
}  // namespace backplane::shm::test
