// SPDX-License-Identifier: Apache-2.0
//
// send and recv of the plugin gloo: sizes, tags, any source, self, truncation, cancellation.
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <thread>

#include "gloo_test.hpp"

namespace backplane::test {
namespace {

constexpr int64_t kShortTimeout = 50'000'000;  // ns: long enough for a message, short enough to wait out

std::vector<char> pattern(uint64_t size, int seed) {
  std::vector<char> data(size);
  for (uint64_t i = 0; i < size; ++i) data[i] = static_cast<char>(i * 31 + static_cast<uint64_t>(seed));
  return data;
}

void expect_received(Agent& agent, int32_t peer, uint64_t tag, const std::vector<char>& expected, int32_t source) {
  std::vector<char> data(expected.size());
  bp_result result = fresh_result();
  expect_done(agent, recv_op(peer, tag, data.data(), data.size(), &result));
  EXPECT_EQ(data, expected);
  EXPECT_EQ(result.source, source);
  EXPECT_EQ(result.bytes, expected.size());
}

TEST(Message, ArrivesAtEachSize) {
  on_group(2, [](Agent& agent, int32_t rank) {
    for (const uint64_t size : {0UL, 1UL, 47UL, 4096UL, 65537UL, 5'000'000UL}) {
      std::vector<char> data = pattern(size, 1);
      if (rank == 0) expect_done(agent, send_op(1, 7, data.data(), size));
      if (rank == 1) expect_received(agent, 0, 7, data, 0);
    }
  });
}

TEST(Message, IsOrderedPerTag) {
  on_group(2, [](Agent& agent, int32_t rank) {
    std::vector<std::vector<char>> data;
    for (int i = 0; i < 6; ++i) data.push_back(pattern(100, i));
    if (rank == 0) {
      std::vector<bp_work*> works;
      for (uint64_t i = 0; i < 6; ++i) works.push_back(started(agent, send_op(1, i % 2, data[i].data(), 100)));
      for (bp_work* work : works) EXPECT_EQ(finished(agent, work), BP_OK);
    } else {
      for (const size_t i : {1, 3, 0, 5, 2, 4}) expect_received(agent, 0, i % 2, data[i], 0);
    }
  });
}

TEST(Message, MatchesAll64BitsOfATag) {
  on_group(2, [](Agent& agent, int32_t rank) {
    const uint64_t tags[] = {0, UINT64_C(0xffffffff), BP_TAG_INTERNAL, BP_TAG_INTERNAL | UINT64_C(0x0300000000000001),
                             UINT64_C(0xffffffffffffffff)};
    std::vector<bp_work*> works;
    std::vector<std::vector<char>> data;
    for (int i = 0; i < 5; ++i) data.push_back(pattern(10, i));
    for (size_t i = 5; i-- > 0;) {
      if (rank == 0) works.push_back(started(agent, send_op(1, tags[i], data[i].data(), 10)));
    }
    for (size_t i = 0; i < 5 && rank == 1; ++i) expect_received(agent, 0, tags[i], data[i], 0);
    for (bp_work* work : works) EXPECT_EQ(finished(agent, work), BP_OK);
  });
}

TEST(Message, ComesFromAnySource) {
  constexpr int32_t kWorld = 4;
  constexpr int kRounds = 20;
  on_group(kWorld, [](Agent& agent, int32_t rank) {
    std::vector<int> heard(kWorld);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<char> data = pattern(200, rank);
      if (rank != 0) {
        expect_done(agent, send_op(0, 3, data.data(), data.size()));
        continue;
      }
      bp_work* const to_self = started(agent, send_op(0, 3, data.data(), data.size()));
      for (int32_t i = 0; i < kWorld; ++i) {
        std::vector<char> got(200);
        bp_result result = fresh_result();
        expect_done(agent, recv_op(BP_ANY_SOURCE, 3, got.data(), got.size(), &result));
        EXPECT_EQ(got, pattern(200, result.source));
        ++heard.at(static_cast<size_t>(result.source));
      }
      EXPECT_EQ(finished(agent, to_self), BP_OK);
    }
    EXPECT_EQ(heard, std::vector<int>(kWorld, rank == 0 ? kRounds : 0));
  });
}

TEST(Message, IsDeliveredToSelf) {
  for (const int32_t world : {1, 2}) {
    on_group(world, [](Agent& agent, int32_t rank) {
      std::vector<char> data = pattern(1000, 5);
      expect_done(agent, send_op(rank, 1, data.data(), data.size()));
      expect_received(agent, rank, 1, data, rank);
      // The receive is posted first.
      for (const int32_t from : {rank, BP_ANY_SOURCE}) {
        std::vector<char> got(1000);
        bp_result result = fresh_result();
        bp_work* const work = started(agent, recv_op(from, 2, got.data(), got.size(), &result));
        EXPECT_EQ(agent.api().work_test(agent.self(), work, nullptr), BP_AGAIN);
        expect_done(agent, send_op(rank, 2, data.data(), data.size()));
        EXPECT_EQ(finished(agent, work), BP_OK);
        EXPECT_EQ(got, data);
        EXPECT_EQ(result.source, rank);
      }
      // A receive from any source fails when all others have left, so they stay until here.
      expect_done(agent, make_op(BP_BARRIER));
    });
  }
}

TEST(Message, MayBeShorterThanItsBuffer) {
  on_group(2, [](Agent& agent, int32_t rank) {
    for (const uint64_t size : {0UL, 1UL, 5000UL}) {
      std::vector<char> data = pattern(size, 2);
      if (rank == 0) {
        expect_done(agent, send_op(1, 9, data.data(), size));
        continue;
      }
      std::vector<char> got(10'000, 'x');
      bp_result result = fresh_result();
      expect_done(agent, recv_op(size == 1 ? BP_ANY_SOURCE : 0, 9, got.data(), got.size(), &result));
      EXPECT_EQ(result.bytes, size);
      EXPECT_EQ(std::vector<char>(got.begin(), got.begin() + static_cast<ptrdiff_t>(size)), data);
      EXPECT_EQ(std::count(got.begin() + static_cast<ptrdiff_t>(size), got.end(), 'x'),
                10'000 - static_cast<ptrdiff_t>(size));
    }
  });
}

TEST(Message, TooLongFailsAndTheGroupStaysUsable) {
  on_group(2, [](Agent& agent, int32_t rank) {
    for (const int32_t peer : {1 - rank, rank, BP_ANY_SOURCE}) {
      std::vector<char> data = pattern(3'000'000, 3);
      const int32_t from = peer == BP_ANY_SOURCE ? 1 - rank : peer;
      bp_work* const sending = started(agent, send_op(from, 4, data.data(), data.size()));
      std::vector<char> got(100);
      bp_result result = fresh_result();
      bp_error err = fresh_error();
      EXPECT_EQ(agent.run(recv_op(peer, 4, got.data(), got.size(), &result), &err), BP_INVALID);
      EXPECT_EQ(result.bytes, data.size());
      EXPECT_EQ(result.source, from);
      EXPECT_NE(std::string(err.text).find("3000000 bytes"), std::string::npos) << err.text;
      EXPECT_EQ(finished(agent, sending), BP_OK);
      bp_work* const again = started(agent, send_op(from, 4, data.data(), 100));
      expect_received(agent, peer, 4, pattern(100, 3), from);
      EXPECT_EQ(finished(agent, again), BP_OK);
    }
  });
}

// Polls for a message that arrives in many pieces: a receive that ends while it arrives must not lose it.
TEST(Message, OfManyPiecesIsNotLostToReceivesThatTimeOut) {
  on_group(2, [](Agent& agent, int32_t rank) {
    std::vector<char> data = pattern(30'000'000, 3);
    for (int i = 0; rank == 0 && i < 3; ++i) expect_done(agent, send_op(1, 6, data.data(), data.size()));
    for (int i = 0; rank == 1 && i < 3; ++i) {
      std::vector<char> got(data.size());
      bp_op receive = recv_op(0, 6, got.data(), got.size());
      receive.timeout_ns = 0;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      int32_t status = BP_TIMEOUT;
      while (status == BP_TIMEOUT && std::chrono::steady_clock::now() < limit) status = agent.run(receive);
      ASSERT_EQ(status, BP_OK) << "message " << i;
      EXPECT_EQ(got, data);
    }
  });
}

// The message is longer than what the first allocation holds, and is kept as it arrives.
TEST(Message, IsKeptWholeForTheReceiveAfterACancelledOne) {
  on_group(2, [](Agent& agent, int32_t rank) {
    std::vector<char> data = pattern(3'000'001, 8);
    std::vector<char> got(16);
    if (rank == 1) {
      bp_op timed = recv_op(0, 6, got.data(), got.size());
      timed.timeout_ns = 0;
      EXPECT_EQ(agent.run(timed), BP_TIMEOUT);
    }
    bp_op barrier = make_op(BP_BARRIER);
    barrier.flags = BP_OP_SYNC;
    expect_done(agent, barrier);
    if (rank == 0) expect_done(agent, send_op(1, 6, data.data(), data.size()));
    if (rank == 1) expect_received(agent, 0, 6, data, 0);
  });
}

TEST(Message, TravelsBothWaysConcurrently) {
  on_group(2, [](Agent& agent, int32_t rank) {
    std::vector<char> out = pattern(20'000'000, rank);
    bp_work* const sending = started(agent, send_op(1 - rank, 1, out.data(), out.size()));
    expect_received(agent, 1 - rank, 1, pattern(20'000'000, 1 - rank), 1 - rank);
    EXPECT_EQ(finished(agent, sending), BP_OK);
  });
}

TEST(Message, PendingReceivesDoNotBlockACollective) {
  on_group(2, [](Agent& agent, int32_t rank) {
    constexpr uint64_t kMany = 64;
    std::vector<char> data(kMany);
    std::vector<bp_work*> works;
    for (uint64_t i = 0; i < kMany; ++i) works.push_back(started(agent, recv_op(1 - rank, i, &data[i], 1)));
    bp_op barrier = make_op(BP_BARRIER);
    EXPECT_EQ(finished(agent, started(agent, barrier)), BP_OK);
    for (uint64_t i = 0; i < kMany; ++i) {
      char byte = static_cast<char>(i);
      expect_done(agent, send_op(1 - rank, i, &byte, 1));
    }
    for (uint64_t i = 0; i < kMany; ++i) {
      EXPECT_EQ(finished(agent, works[i]), BP_OK);
      EXPECT_EQ(data[i], static_cast<char>(i));
    }
  });
}

// One thread moves the bytes for all threads, including those of a receive that completes last.
TEST(Message, ProgressesWhileAnotherThreadDrives) {
  on_group(2, [](Agent& agent, int32_t rank) {
    std::vector<char> data = pattern(200'000, 4);
    if (rank == 0) {
      for (const uint64_t tag : {2, 3}) expect_done(agent, send_op(1, tag, data.data(), data.size()));
      expect_received(agent, 1, 4, {'y'}, 1);
      expect_done(agent, send_op(1, 1, data.data(), data.size()));
      return;
    }
    std::thread last([&agent, &data] { expect_received(agent, 0, 1, data, 0); });
    std::vector<char> got(data.size());
    bp_work* const work = started(agent, recv_op(0, 2, got.data(), got.size()));
    EXPECT_EQ(finished(agent, work), BP_OK);
    EXPECT_EQ(got, data);
    expect_received(agent, 0, 3, data, 0);
    char answer = 'y';
    expect_done(agent, send_op(0, 4, &answer, 1));
    last.join();
  });
}

TEST(Message, SurvivesACancelledReceive) {
  on_group(2, [](Agent& agent, int32_t rank) {
    for (const bool from_any : {false, true}) {
      std::vector<char> got(1000);
      if (rank == 1) {
        bp_work* const work = started(agent, recv_op(0, 6, got.data(), got.size()));
        agent.api().work_cancel(agent.self(), work);
        EXPECT_EQ(finished(agent, work), BP_CANCELLED);
        bp_op timed = recv_op(from_any ? BP_ANY_SOURCE : 0, 6, got.data(), got.size());
        timed.timeout_ns = kShortTimeout;
        EXPECT_EQ(agent.run(timed), BP_TIMEOUT);
      }
      bp_op barrier = make_op(BP_BARRIER);
      barrier.seq = from_any ? 1 : 0;
      barrier.flags = BP_OP_SYNC;
      expect_done(agent, barrier);
      std::vector<char> data = pattern(500, 8);
      if (rank == 0) expect_done(agent, send_op(1, 6, data.data(), data.size()));
      if (rank == 1) expect_received(agent, from_any ? BP_ANY_SOURCE : 0, 6, data, 0);
    }
  });
}

// A message may arrive between the last test of a receive and its end.
TEST(Message, IsNotLostToAReceiveThatTimesOut) {
  constexpr int kMessages = 300;
  on_group(2, [](Agent& agent, int32_t rank) {
    std::vector<char> data = pattern(100, 3);
    for (int i = 0; rank == 0 && i < kMessages; ++i) expect_done(agent, send_op(1, 6, data.data(), data.size()));
    for (int i = 0; rank == 1 && i < kMessages; ++i) {
      std::vector<char> got(data.size());
      bp_op receive = recv_op(i % 2 == 0 ? 0 : BP_ANY_SOURCE, 6, got.data(), got.size());
      receive.timeout_ns = 0;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      int32_t status = BP_TIMEOUT;
      while (status == BP_TIMEOUT && std::chrono::steady_clock::now() < limit) status = agent.run(receive);
      ASSERT_EQ(status, BP_OK) << "message " << i;
      EXPECT_EQ(got, data);
    }
  });
}

TEST(Message, MayArriveAfterItsSendTimedOut) {
  on_group(2, [](Agent& agent, int32_t rank) {
    bp_op barrier = make_op(BP_BARRIER);
    barrier.flags = BP_OP_SYNC;
    if (rank == 0) {
      std::vector<char> data = pattern(700, 4);
      bp_op op = send_op(1, 2, data.data(), data.size());
      op.timeout_ns = kShortTimeout;
      bp_error err = fresh_error();
      EXPECT_EQ(agent.run(op, &err), BP_TIMEOUT);
      EXPECT_NE(std::string(err.text).find("send to rank 1 with tag 2"), std::string::npos) << err.text;
      std::fill(data.begin(), data.end(), 'z');  // the buffer belongs to the user again
      expect_done(agent, barrier);
      data = pattern(10, 5);
      expect_done(agent, send_op(1, 2, data.data(), data.size()));
    } else {
      expect_done(agent, barrier);
      expect_received(agent, 0, 2, pattern(700, 4), 0);
      expect_received(agent, 0, 2, pattern(10, 5), 0);
    }
  });
}

TEST(Message, ArrivesAfterItsSenderLeft) {
  on_group(2, [](Agent& agent, int32_t rank) {
    std::vector<char> data = pattern(30'000'000, 6);
    if (rank == 0) expect_done(agent, send_op(1, 1, data.data(), data.size()));
    if (rank == 1) expect_received(agent, 0, 1, data, 0);
  });
}

}  // namespace
}  // namespace backplane::test
