// SPDX-License-Identifier: Apache-2.0
#include <latch>

#include "support/eventually.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

const CallOptions kAsync = {.async_op = true};

using AsyncTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, AsyncTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 2, 4)),
                         backend_test_name);
INSTANTIATE_TEST_SUITE_P(Composites, AsyncTest,
                         testing::Combine(testing::ValuesIn(composite_backends()), testing::Values(4)),
                         backend_test_name);

TEST_P(AsyncTest, ManyCollectivesInFlightWaitedForOutOfOrder) {
  in_group([](ProcessGroup& group) {
    std::vector<std::vector<int64_t>> data;
    for (int i = 0; i < 40; ++i) data.emplace_back(static_cast<size_t>(1 + i * 97), i);
    std::vector<Work> works;
    for (auto& vector : data) works.push_back(group.all_reduce(vector, ReduceOp::kSum, kAsync));
    for (size_t i = works.size(); i-- > 0;) {
      works[i].wait();
      EXPECT_TRUE(works[i].is_completed());
      EXPECT_EQ(data[i].back(), static_cast<int64_t>(i) * group.world_size());
    }
  });
}

TEST_P(AsyncTest, TestIsMonotonicAndWaitMayBeRepeated) {
  in_group([](ProcessGroup& group) {
    double value = 1;
    Work work = group.all_reduce(as_buffer(value), ReduceOp::kSum, kAsync);
    ASSERT_TRUE(eventually([&work] { return work.is_completed(); })) << "the operation does not end";
    EXPECT_TRUE(work.is_completed());
    work.wait();
    work.wait();
    EXPECT_TRUE(work.wait_for(std::chrono::seconds(0)));
    EXPECT_EQ(value, group.world_size());
  });
}

// For each operation one rank keeps its handle and checks that the other ranks took part.
TEST_P(AsyncTest, OperationsContinueAfterTheirHandlesAreDropped) {
  // One vector per rank, valid until the groups have ended: a later operation may be done before an earlier one.
  std::vector<std::vector<int>> values(8, std::vector<int>(300, 1));
  in_group([&values](ProcessGroup& group) {
    std::vector<int>& mine = values.at(static_cast<size_t>(group.rank()));
    std::vector<std::pair<int*, Work>> kept;
    for (int i = 0; i < 300; ++i) {
      int& value = mine[static_cast<size_t>(i)];
      Work work = group.all_reduce(as_buffer(value), ReduceOp::kSum, kAsync);
      if (i % group.world_size() == group.rank()) kept.emplace_back(&value, std::move(work));
    }
    for (auto& [value, work] : kept) {
      work.wait();
      EXPECT_EQ(*value, group.world_size());
    }
    group.barrier();
  });
}

// The result of a dropped receive is not written to freed memory (found by ASan).
TEST_P(AsyncTest, DroppedReceivesMayStillReceive) {
  in_group([](ProcessGroup& group) {
    const int out = 7;
    int in = 0;
    static_cast<void>(group.irecv(as_buffer(in), group.rank(), 1));  // continues
    group.send(as_buffer(out), group.rank(), 1);
    int again = 0;
    Work kept = group.irecv(as_buffer(again), group.rank(), 2);
    group.send(as_buffer(out), group.rank(), 2);
    kept.wait();
    EXPECT_EQ(again, out);
    EXPECT_EQ(kept.received().source, group.rank());
    EXPECT_EQ(kept.received().bytes, sizeof out);
  });
}

TEST_P(AsyncTest, CountsAreCopiedWhenTheOperationStarts) {
  in_group([](ProcessGroup& group) {
    const auto world = static_cast<size_t>(group.world_size());
    const int mine = group.rank();
    std::vector<int> all(world, -1);
    Work work;
    {
      const Blocks blocks = {std::vector<uint64_t>(world, 1)};
      work = group.all_gatherv(as_buffer(mine), all, blocks, kAsync);
    }
    work.wait();
    for (size_t rank = 0; rank < world; ++rank) EXPECT_EQ(all[rank], static_cast<int>(rank));
  });
}

TEST_P(AsyncTest, MessagesBesideCollectives) {
  in_group([](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.world_size();
    const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
    int in = -1;
    const int out = group.rank();
    Work receiving = group.irecv(as_buffer(in), previous);
    int sum = 1;
    Work reducing = group.all_reduce(as_buffer(sum), ReduceOp::kSum, kAsync);
    Work sending = group.isend(as_buffer(out), next);
    int sum2 = 2;
    group.all_reduce(as_buffer(sum2));
    receiving.wait();
    sending.wait();
    reducing.wait();
    EXPECT_EQ(in, previous);
    EXPECT_EQ(sum, group.world_size());
    EXPECT_EQ(sum2, 2 * group.world_size());
  });
}

TEST_P(AsyncTest, BatchOfMessages) {
  in_group([](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.world_size();
    const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
    const int out = group.rank();
    int in = -1;
    bp_op send = ProcessGroup::make_op(BP_SEND, as_buffer(out), {}, {});
    send.peer = next;
    bp_op recv = ProcessGroup::make_op(BP_RECV, {}, as_buffer(in), {});
    recv.peer = previous;
    const bp_op* const ops[] = {&send, &recv};
    bp_request* requests[2] = {};
    ASSERT_EQ(bp_group_submit_batch(group.get(), ops, 2, requests, nullptr), BP_OK);
    for (bp_request* request : requests) {
      EXPECT_EQ(bp_request_wait(request, BP_NO_TIMEOUT, nullptr), BP_OK);
      bp_request_release(request);
    }
    EXPECT_EQ(in, previous);
    // An invalid operation in the batch starts none. If the send had started, it would arrive before the next one.
    recv.peer = 99;
    EXPECT_EQ(bp_group_submit_batch(group.get(), ops, 2, requests, nullptr), BP_INVALID);
    const int more = 100 + group.rank();
    Work sending = group.isend(as_buffer(more), next);
    group.recv(as_buffer(in), previous);
    EXPECT_EQ(in, 100 + previous);
    sending.wait();
  });
}

TEST_P(AsyncTest, CancelledReceiveFailsAndTheGroupRemainsUsable) {
  in_group([](ProcessGroup& group) {
    int value = 0;
    Work work = group.irecv(as_buffer(value), group.rank(), 3);
    EXPECT_FALSE(work.is_completed());
    work.cancel();
    EXPECT_EQ(failure_of([&work] { work.wait(); }), Status::kCancelled);
    EXPECT_EQ(failure_of([&work] { work.wait(); }), Status::kCancelled);
    group.barrier();
  });
}

TEST_P(AsyncTest, DestroyEndsPendingOperations) {
  const Store store = Store::inproc();
  on_ranks(world_size(), [this, &store](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(backend(), store, rank, world_size()));
    int value = 0;
    Work work = group.irecv(as_buffer(value), rank, 3);
    group.barrier();
    group.destroy();
    EXPECT_EQ(failure_of([&work] { work.wait(); }), Status::kCancelled);
    std::string text;
    EXPECT_EQ(failure_of([&group] { group.barrier(); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("has been destroyed"), std::string::npos) << text;
  });
}

TEST_P(AsyncTest, AbortEndsABlockedCallOfAnotherThread) {
  const Store store = Store::inproc();
  std::latch done(1);
  on_ranks(world_size(), [this, &store, &done](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(backend(), store, rank, world_size()));
    if (rank == 0) {
      const int silent = world_size() - 1;
      int value = 0;
      Work pending = group.irecv(as_buffer(value), silent, 1);
      std::thread aborter([group]() mutable { group.abort("aborted by the test"); });
      std::string text;
      int other = 0;
      EXPECT_EQ(failure_of([&] { group.recv(as_buffer(other), silent, 2); }, &text), Status::kCancelled);
      EXPECT_NE(text.find("aborted by the test"), std::string::npos) << text;
      EXPECT_EQ(failure_of([&pending] { pending.wait(); }), Status::kCancelled);
      EXPECT_EQ(failure_of([&group] { group.barrier(); }, &text), Status::kCancelled);
      EXPECT_NE(text.find("is broken"), std::string::npos) << text;
      aborter.join();
      done.count_down();
    }
    done.wait();  // the others would report a rank that leaves as lost
  });
}

}  // namespace
}  // namespace backplane::test
