// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include "ranks.hpp"

namespace backplane::shm::test {
namespace {

struct Pair {
  explicit Pair(uint64_t staging = Staging::kLeast, int32_t ranks = 2) : memory(ranks, staging) {}
  Memory memory;
  Channel& channel = memory.view.channel(1, 0);
  Ring ring = memory.view.ring(1, 0);
  std::atomic<uint32_t>& opened = memory.view.opened(1, 0);
  Outbox out{channel, ring, opened, false};
  Inbox in{channel, ring, opened, false};
};

uint64_t length_of(uint64_t number) {
  std::mt19937_64 random(number);
  const uint64_t kind = random() % 4;
  return kind < 2 ? random() % (kHeadData + 1) : kind == 2 ? random() % (kPiece + 1) : random() % (kMaxEager + 1);
}

void put(Pair& pair, uint64_t number, std::mt19937_64& random) {
  std::vector<std::byte> bytes(length_of(number));
  fill(bytes, number);
  const auto put_once = [&] {
    if (bytes.size() <= kHeadData) return pair.out.put_inline(number, bytes.data(), bytes.size());
    return pair.out.put_piece(bytes.size() > kPiece ? Kind::kEager : Kind::kData, number, number, bytes.data(),
                              bytes.size());
  };
  while (!put_once()) sched_yield();
  yield_sometimes(random);
}

// The smallest and the largest ring, by the number of ranks.
class Rings : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Rings, testing::Values(5, 2));

TEST_P(Rings, KeepOrder) {
  Pair pair(GetParam() == 2 ? Staging::kMost : Staging::kLeast, GetParam());
  ASSERT_EQ(pair.ring.size, GetParam() == 2 ? Staging::kMost : kMinRing);
  pair.out.open();
  constexpr uint64_t kCount = 2000 * kEffort;
  std::thread writer([&pair] {
    std::mt19937_64 random(1);
    for (uint64_t number = 1; number <= kCount; ++number) put(pair, number, random);
  });
  std::mt19937_64 random(2);
  Arrival arrival;
  for (uint64_t number = 1; number <= kCount;) {
    const Inbox::Peek look = pair.in.peek(arrival);
    ASSERT_NE(look, Inbox::Peek::kMalformed);
    if (look == Inbox::Peek::kNone) {
      pair.in.release();  // the writer may need the whole ring
      sched_yield();
      continue;
    }
    ASSERT_EQ(arrival.tag, number);
    ASSERT_EQ(arrival.length, length_of(number));
    ASSERT_TRUE(is_filled(arrival.data, arrival.length, number)) << number;
    pair.in.pop();
    if (arrival.kind != Kind::kData) pair.in.return_credits(arrival.length);
    if (random() % 3 == 0 || arrival.length > kEagerLimit) pair.in.release();
    if (random() % 64 == 0) sched_yield();
    ++number;
    if (number % kHeads == 0) pair.in.release();
  }
  pair.in.release();
  writer.join();
}

TEST(Ring, ReportsAWaitingSender) {
  Pair pair;
  pair.out.open();
  uint32_t count = 0;
  while (pair.out.put_inline(count, nullptr, 0)) ++count;
  EXPECT_EQ(count, kHeads);
  Arrival arrival;
  ASSERT_EQ(pair.in.peek(arrival), Inbox::Peek::kMessage);
  pair.in.pop();
  EXPECT_TRUE(pair.in.release());
  EXPECT_FALSE(pair.in.release());
  EXPECT_TRUE(pair.out.put_inline(count, nullptr, 0));
  EXPECT_FALSE(pair.out.put_inline(count, nullptr, 0));
}

bool put_data(Pair& pair, uint64_t size) {
  static const std::vector<std::byte> bytes(kPiece);
  return pair.out.put_piece(Kind::kData, 1, 1, bytes.data(), size);
}

// A lock that this thread holds and another thread waits for.
class Request {
 public:
  Request() {
    lock.lock();
    other_ = std::thread([this] {
      lock.lock();
      lock.unlock();
    });
    while (!lock.is_contended()) sched_yield();
  }
  ~Request() {
    lock.unlock();
    other_.join();
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  SpinLock lock;

 private:
  std::thread other_;
};

TEST(ReadBatch, ReportsRoomByBytes) {
  Pair pair;
  ASSERT_LT(pair.ring.size / 4, ReadBatch::kBatch * kPiece);
  pair.out.open();
  while (put_data(pair, kPiece)) {
  }
  const SpinLock lock;
  ReadBatch reading(pair.in, lock);
  Arrival arrival;
  uint64_t bytes = 0;
  bool waits = false;
  while (!waits && reading.next(arrival) == Inbox::Peek::kMessage) {
    bytes += arrival.length;
    waits = reading.pop();
  }
  EXPECT_TRUE(waits);
  EXPECT_EQ(bytes, pair.ring.size / 4);
  EXPECT_TRUE(put_data(pair, kPiece));
}

TEST(ReadBatch, ReportsRoomByHeads) {
  Pair pair;
  pair.out.open();
  while (pair.out.put_inline(1, nullptr, 0)) {
  }
  const SpinLock lock;
  ReadBatch reading(pair.in, lock);
  Arrival arrival;
  uint32_t heads = 0;
  for (bool waits = false; !waits && reading.next(arrival) == Inbox::Peek::kMessage; ++heads) waits = reading.pop();
  EXPECT_EQ(heads, static_cast<uint32_t>(ReadBatch::kBatch));
  EXPECT_LE(heads, kHeads / 8);
}

// The limits of bytes and heads of a batch while the sender continues.
void expect_end(const SpinLock& lock, uint64_t staging, uint64_t max_message_bytes, uint64_t most_heads) {
  for (const uint64_t size : {kPiece, uint64_t{5000}, uint64_t{0}}) {
    Pair pair(staging);
    pair.out.open();
    ReadBatch reading(pair.in, lock);
    Arrival arrival;
    uint64_t heads = 0;
    while (put_data(pair, size) && reading.next(arrival) == Inbox::Peek::kMessage) {
      reading.pop();
      ASSERT_LE(++heads * size, max_message_bytes + size);
      ASSERT_LE(heads, most_heads);
    }
    reading.end();
    EXPECT_EQ(reading.next(arrival), Inbox::Peek::kNone);
    EXPECT_EQ(pair.in.peek(arrival), Inbox::Peek::kMessage) << "the sender cannot send";
  }
}

TEST(ReadBatch, EndsWhileTheSenderContinues) {
  expect_end({}, Staging::kLeast, UINT64_C(1) << 20, 4 * kHeads);
  expect_end({}, Staging::kMost, 2 * Staging::kMost, 4 * kHeads);
}

TEST(ReadBatch, EndsEarlyIfTheLockIsContended) {
  const Request expected;
  for (const uint64_t staging : {Staging::kLeast, Staging::kMost}) expect_end(expected.lock, staging, staging, kHeads);
}

// The sender has already rung for these messages and will not ring again.
TEST(ReadBatch, ReadsAllThatWasSentBeforeItsBegin) {
  const Request expected;
  Pair pair;
  pair.out.open();
  std::mt19937_64 random(1);
  Arrival arrival;
  uint64_t sent = 0;
  uint64_t read = 0;
  const auto put_once = [&pair, &sent](uint64_t size) {
    const bool has_put = put_data(pair, size);
    sent += has_put ? 1 : 0;
    return has_put;
  };
  for (uint64_t round = 0; round < 200 * kEffort; ++round) {
    const uint64_t size = round == 0 ? kPiece : random() % (kPiece + 1);
    while (put_once(size)) {
    }
    while (put_once(0)) {
    }
    const uint64_t there = sent;
    ReadBatch reading(pair.in, expected.lock);
    for (; reading.next(arrival) == Inbox::Peek::kMessage; ++read) {
      reading.pop();
      while (random() % 4 != 0 && put_once(random() % 2 * size)) {
      }
    }
    reading.end();
    ASSERT_GE(read, there) << "in round " << round;
  }
}

TEST(Ring, ReturnsWindowSpace) {
  Pair pair;
  pair.out.open();
  EXPECT_FALSE(pair.out.take_credit(kMaxEager + 1));
  uint64_t count = 0;
  while (pair.out.take_credit(1000)) ++count;
  EXPECT_EQ(count, kWindow / (1000 + kOverhead));
  pair.in.return_credits(1000);
  EXPECT_TRUE(pair.out.take_credit(1000));
  EXPECT_FALSE(pair.out.take_credit(1000));
}

TEST(Ring, ReturnsUnusedWindowSpace) {
  Pair pair;
  while (pair.out.take_credit(1000)) {
  }
  pair.out.return_credit(1000);
  EXPECT_TRUE(pair.out.take_credit(1000));
  EXPECT_FALSE(pair.out.take_credit(1000));
}

TEST(Ring, RejectsDataBeyondTheWindow) {
  Pair pair;
  pair.out.open();
  const char bytes[kHeadData] = {};
  Arrival arrival;
  for (uint64_t count = 0; count < kWindow / (kHeadData + kOverhead); ++count) {
    ASSERT_TRUE(pair.out.put_inline(1, bytes, kHeadData));
    ASSERT_EQ(pair.in.peek(arrival), Inbox::Peek::kMessage);
    pair.in.pop();
    pair.in.release();
  }
  ASSERT_TRUE(pair.out.put_inline(1, bytes, kHeadData));
  EXPECT_EQ(pair.in.peek(arrival), Inbox::Peek::kMalformed);
  pair.in.return_credits(kHeadData);
  EXPECT_EQ(pair.in.peek(arrival), Inbox::Peek::kMessage);
}

// Data written by a malicious peer never lead outside the channel.
TEST(Ring, RejectsMalformedHeads) {
  const auto look_at = [](uint32_t word) {
    Pair pair;
    pair.out.open();
    pair.channel.heads[0].kind_and_length = word;
    pair.channel.heads[0].sequence.store(1);
    Arrival arrival;
    return pair.in.peek(arrival);
  };
  const auto word = [](Kind kind, uint64_t length) {
    return static_cast<uint32_t>(kind) | static_cast<uint32_t>(length << 8);
  };
  EXPECT_EQ(look_at(word(Kind::kInline, kHeadData)), Inbox::Peek::kMessage);
  EXPECT_EQ(look_at(word(Kind::kInline, kHeadData + 1)), Inbox::Peek::kMalformed);
  EXPECT_EQ(look_at(word(Kind::kEager, kMaxEager + 1)), Inbox::Peek::kMalformed);
  EXPECT_EQ(look_at(word(Kind::kData, kPiece + 1)), Inbox::Peek::kMalformed);
  EXPECT_EQ(look_at(word(Kind::kData, 0xffffff)), Inbox::Peek::kMalformed);
  EXPECT_EQ(look_at(0), Inbox::Peek::kMalformed);
  EXPECT_EQ(look_at(99), Inbox::Peek::kMalformed);
}

}  // namespace
}  // namespace backplane::shm::test
