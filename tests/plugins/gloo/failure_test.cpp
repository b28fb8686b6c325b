// SPDX-License-Identifier: Apache-2.0
//
// Failing operations of the plugin gloo: abort, timeout, lost peers, mismatch, cancel.
#include <gtest/gtest.h>

#include <chrono>
#include <latch>

#include "gloo_test.hpp"

namespace backplane::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPromptly{10};  // the timeout of the operations is 20 s

bp_error why_error() {
  bp_error why = fresh_error();
  bp_error_set(&why, BP_PEER_LOST, 0, 7, "rank 7 crashed");
  return why;
}

// Rank 0 blocks in `op`, which has no counterpart, and another thread aborts.
void expect_abort_ends(bp_op op) {
  std::latch aborted(1);
  on_group(2, [&aborted, op](Agent& agent, int32_t rank) {
    if (rank == 1) return aborted.wait();
    Clock::time_point begin;
    std::latch about_to_block(1);
    std::thread aborter([&agent, &begin, &about_to_block] {
      about_to_block.wait();
      const bp_error why = why_error();
      begin = Clock::now();
      agent.api().abort(agent.self(), &why);
    });
    bp_error err = fresh_error();
    about_to_block.count_down();
    EXPECT_EQ(agent.run(op, &err), BP_PEER_LOST);
    const Clock::time_point end = Clock::now();
    aborter.join();
    EXPECT_LT(end - begin, kPromptly);
    EXPECT_EQ(err.peer_rank, 7);
    EXPECT_NE(std::string(err.text).find("rank 7 crashed"), std::string::npos) << err.text;
    EXPECT_EQ(agent.run(op, &err), BP_PEER_LOST);  // fails at once with the first cause
    aborted.count_down();
  });
}

TEST(Abort, EndsASyncReceive) {
  char byte = 0;
  expect_abort_ends(recv_op(1, 5, &byte, 1));
  expect_abort_ends(recv_op(0, 5, &byte, 1));
  expect_abort_ends(recv_op(BP_ANY_SOURCE, 5, &byte, 1));
}

TEST(Abort, EndsASend) {
  std::vector<char> data(1'000'000);
  expect_abort_ends(send_op(1, 5, data.data(), data.size()));
  expect_abort_ends(send_op(1, 5, data.data(), data.size(), 0));
}

TEST(Abort, EndsACollective) {
  for (const uint64_t flags : {UINT64_C(0), uint64_t{BP_OP_SYNC}}) {
    std::vector<float> data(100'000);
    bp_op op = make_op(BP_ALL_REDUCE, BP_F32);
    op.flags = flags;
    op.input = op.output = span(data);
    expect_abort_ends(op);
    op = make_op(BP_BARRIER);
    op.flags = flags;
    expect_abort_ends(op);
  }
}

TEST(Abort, EndsQueuedCollectives) {
  std::latch done(1);
  on_group(2, [&done](Agent& agent, int32_t rank) {
    if (rank == 1) return done.wait();
    std::vector<bp_work*> works;
    for (uint64_t i = 0; i < 10; ++i) {
      bp_op op = make_op(BP_BARRIER);
      op.seq = i;
      works.push_back(started(agent, op));
    }
    const bp_error why = why_error();
    agent.api().abort(agent.self(), &why);
    for (bp_work* work : works) {
      bp_error err = fresh_error();
      EXPECT_EQ(finished(agent, work, &err), BP_PEER_LOST);
      EXPECT_EQ(err.peer_rank, 7) << err.text;
    }
    done.count_down();
  });
}

TEST(Timeout, OfAMessageNamesThePeer) {
  std::latch done(1);
  on_group(2, [&done](Agent& agent, int32_t rank) {
    if (rank == 1) return done.wait();
    std::vector<char> data(1'000'000);
    for (bp_op op : {recv_op(1, 5, data.data(), 1), recv_op(0, 5, data.data(), 1),
                     recv_op(BP_ANY_SOURCE, 5, data.data(), 1), send_op(1, 5, data.data(), data.size())}) {
      op.timeout_ns = 20'000'000;
      bp_error err = fresh_error();
      EXPECT_EQ(agent.run(op, &err), BP_TIMEOUT);
      EXPECT_EQ(err.peer_rank, op.peer) << err.text;  // BP_ANY_SOURCE is also "unknown"
    }
    done.count_down();
  });
}

// The rank that aborts stays in the group.
TEST(Abort, IsSeenByPeers) {
  std::latch done(1);
  on_group(2, [&done](Agent& agent, int32_t rank) {
    char byte = 0;
    if (rank == 1) {
      const bp_error why = why_error();
      agent.api().abort(agent.self(), &why);
      return done.wait();
    }
    bp_error err = fresh_error();
    EXPECT_EQ(agent.run(recv_op(1, 5, &byte, 1), &err), BP_PEER_LOST);
    EXPECT_EQ(err.peer_rank, 1) << err.text;
    done.count_down();
  });
}

TEST(Timeout, OfACollectiveEndsTheGroup) {
  std::latch done(1);
  on_group(2, [&done](Agent& agent, int32_t rank) {
    if (rank == 1) return done.wait();
    for (const char* what : {"first", "later"}) {
      bp_op op = make_op(BP_BARRIER);
      op.seq = 41;
      op.flags = BP_OP_SYNC;
      op.timeout_ns = 20'000'000;
      bp_error err = fresh_error();
      EXPECT_EQ(agent.run(op, &err), BP_TIMEOUT) << what;
      EXPECT_NE(std::string(err.text).find("barrier #41 did not end within 20 ms"), std::string::npos) << err.text;
    }
    done.count_down();
  });
}

// bcube ignores gloo's timeouts.
TEST(Timeout, AppliesToEachAlgorithm) {
  for (const char* algorithm : {"ring", "bcube", "direct"}) {
    std::latch done(1);
    on_group(2,
             [&done](Agent& agent, int32_t rank) {
               if (rank == 1) return done.wait();
               int32_t data = 1;
               bp_op op = make_op(BP_ALL_REDUCE, BP_I32);
               op.flags = BP_OP_SYNC;
               op.input = op.output = span(&data, 1);
               op.timeout_ns = 20'000'000;
               EXPECT_EQ(agent.run(op), BP_TIMEOUT);
               done.count_down();
             },
             {{"algorithm", algorithm}});
  }
}

TEST(PeerLost, IsNamed) {
  on_group(3, [](Agent& agent, int32_t rank) {
    if (rank == 2) return;
    char byte = 0;
    bp_error err = fresh_error();
    EXPECT_EQ(agent.run(recv_op(2, 1, &byte, 1), &err), BP_PEER_LOST);
    EXPECT_EQ(err.peer_rank, 2);
    EXPECT_NE(std::string(err.text).find("rank 2"), std::string::npos) << err.text;
    // The remaining ranks can still communicate.
    if (rank == 0) expect_done(agent, send_op(1, 1, &byte, 1));
    if (rank == 1) expect_done(agent, recv_op(0, 1, &byte, 1));
  });
}

TEST(PeerLost, EndsACollectiveThatNeedsIt) {
  on_group(2, [](Agent& agent, int32_t rank) {
    if (rank == 1) return;
    bp_op op = make_op(BP_BARRIER);
    op.flags = BP_OP_SYNC;
    bp_error err = fresh_error();
    EXPECT_EQ(agent.run(op, &err), BP_PEER_LOST);
    EXPECT_EQ(err.peer_rank, 1) << err.text;
  });
}

// The first connection to end may not be that of the rank that the core knows to be lost.
TEST(PeerLost, NamesTheCulpritOfTheAbort) {
  on_group(2, [](Agent& agent, int32_t rank) {
    if (rank == 1) return;
    bp_op op = make_op(BP_BARRIER);
    op.flags = BP_OP_SYNC;
    bp_error err = fresh_error();
    EXPECT_EQ(agent.run(op, &err), BP_PEER_LOST);
    EXPECT_EQ(err.peer_rank, 1) << err.text;
    const bp_error why = why_error();
    agent.api().abort(agent.self(), &why);
    EXPECT_EQ(agent.run(op, &err), BP_PEER_LOST);
    EXPECT_EQ(err.peer_rank, 7) << err.text;
  });
}

TEST(PeerLost, EndsAnAnySourceReceiveWhenAllOthersLeft) {
  on_group(3, [](Agent& agent, int32_t rank) {
    if (rank != 0) return;
    char byte = 0;
    EXPECT_EQ(agent.run(recv_op(BP_ANY_SOURCE, 1, &byte, 1)), BP_PEER_LOST);
  });
}

// Without the plugin's check gloo would end the process.
TEST(Mismatch, OfCountsIsReported) {
  on_group(2, [](Agent& agent, int32_t rank) {
    std::vector<float> data(rank == 0 ? 1000 : 400);
    bp_op op = make_op(BP_BROADCAST, BP_F32);
    op.flags = BP_OP_SYNC;
    op.root = 0;
    op.output = span(data);
    bp_error err = fresh_error();
    const int32_t status = agent.run(op, &err);
    if (rank == 0) return;
    EXPECT_EQ(status, BP_INVALID);
    EXPECT_NE(std::string(err.text).find("rank 0 sent 4000 bytes where this rank expects 1600"), std::string::npos)
        << err.text;
  });
}

// Of the same size. gloo itself would receive the message.
TEST(Mismatch, OfDtypesIsNotReceived) {
  std::latch ended(2);  // the first to leave would end the other's wait
  on_group(2, [&ended](Agent& agent, int32_t rank) {
    std::vector<float> data(400, static_cast<float>(rank));
    bp_op op = make_op(BP_BROADCAST, rank == 0 ? BP_F32 : BP_I32);
    op.flags = BP_OP_SYNC;
    op.root = 0;
    op.output = span(data);
    op.timeout_ns = 300'000'000;
    const int32_t status = agent.run(op);
    ended.arrive_and_wait();
    if (rank == 0) return;
    EXPECT_EQ(status, BP_TIMEOUT);
    EXPECT_EQ(data, std::vector<float>(400, 1.0F));
  });
}

TEST(Cancel, RemovesAQueuedCollective) {
  std::latch done(1);
  on_group(2,
           [&done](Agent& agent, int32_t rank) {
             if (rank == 1) return done.wait();
             bp_op op = make_op(BP_BARRIER);
             bp_work* const running = started(agent, op);
             op.seq = 1;
             bp_work* const queued = started(agent, op);
             agent.api().work_cancel(agent.self(), queued);
             EXPECT_EQ(finished(agent, queued), BP_CANCELLED);
             const bp_error why = why_error();
             agent.api().abort(agent.self(), &why);
             EXPECT_EQ(finished(agent, running), BP_PEER_LOST);
             done.count_down();
           },
           {{"threads", "1"}});
}

}  // namespace
}  // namespace backplane::test
