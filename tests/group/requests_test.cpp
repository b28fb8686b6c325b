// SPDX-License-Identifier: Apache-2.0
//
// Requests without a waiting thread: deadlines, callbacks, wait_any, and buffers after a release.
#include <atomic>
#include <mutex>

#include "support/eventually.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

constexpr int64_t kSecond = INT64_C(1'000'000'000);

bp_request* start(ProcessGroup& group, uint32_t kind, int32_t peer, std::vector<uint8_t>& bytes, int64_t timeout_ns,
                  uint32_t tag = 0) {
  bp_op op;
  bp_op_init(&op, kind);
  op.dtype = BP_U8;
  op.peer = peer;
  op.tag = tag;
  op.timeout_ns = timeout_ns;
  (kind == BP_SEND ? op.input : op.output) = {bytes.data(), bytes.size(), BP_HOST, 0};
  if (kind == BP_ALL_REDUCE) op.input = op.output;
  bp_request* request = nullptr;
  detail::call(bp_group_submit, group.get(), static_cast<const bp_op*>(&op), &request);
  return request;
}

// The arguments of a callback. It outlives the group.
struct CallbackLog {
  std::mutex mutex;
  int times = 0;
  int32_t status = BP_AGAIN;
  std::string text;
  std::string group;

  static void ended(void* ctx, int32_t status, const bp_error* error) {
    CallbackLog& self = *static_cast<CallbackLog*>(ctx);
    const std::lock_guard lock(self.mutex);
    ++self.times;
    self.status = status;
    self.text = error->text;
    self.group = error->group;
  }
  int count() {
    const std::lock_guard lock(mutex);
    return times;
  }
};

using RequestsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, RequestsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(2)), backend_test_name);

// The program calls nothing until long after the deadline.
TEST_P(RequestsTest, EndAtTheirDeadlineWithoutAWaitingThread) {
  in_group([](ProcessGroup& group) {
    std::vector<uint8_t> bytes(8);
    bp_request* const unwaited = start(group, BP_RECV, 1 - group.rank(), bytes, kSecond / 2, 7);
    CallbackLog log;
    // Reads the flight recorder, because a test or a callback would drive the backend.
    const std::string ended = "\"status\":" + std::to_string(BP_TIMEOUT);
    EXPECT_TRUE(eventually([&] { return group.trace().find(ended) != std::string::npos; })) << group.trace();
    // The operation has ended: the callback is called at once, on this thread.
    detail::call(bp_request_on_done, unwaited, CallbackLog::ended, static_cast<void*>(&log));
    EXPECT_EQ(log.count(), 1) << "the operation is in flight after its deadline";
    EXPECT_EQ(log.status, BP_TIMEOUT) << log.text;
    EXPECT_EQ(log.group, "test");
    bp_request_release(unwaited);
  });
}

TEST_P(RequestsTest, ACollectiveOfOneRankBreaksItsGroupAtItsDeadline) {
  const Store store = Store::inproc();
  on_ranks(2, [&store, this](int rank) {
    std::vector<uint8_t> bytes(8, 1);  // in use until the group has ended
    ProcessGroup group = ProcessGroup::create(group_options(backend(), store, rank, 2));
    if (rank == 0) bp_request_release(start(group, BP_ALL_REDUCE, 0, bytes, kSecond / 2));
    bp_error err;
    bp_error_init(&err);
    EXPECT_TRUE(eventually([&] { return bp_group_status(group.get(), &err) != BP_OK; })) << "rank " << rank;
    EXPECT_STREQ(err.group, "test");
  });
}

TEST_P(RequestsTest, CallbacksAreCalledOnceAlsoAfterTheRelease) {
  CallbackLog log[2];
  in_group([&log](ProcessGroup& group) {
    CallbackLog& mine = log[group.rank()];
    const int peer = 1 - group.rank();
    std::vector<uint8_t> in(100000);
    bp_request* const recv = start(group, BP_RECV, peer, in, BP_INHERIT_TIMEOUT);
    detail::call(bp_request_on_done, recv, CallbackLog::ended, static_cast<void*>(&mine));
    bp_request_release(recv);
    EXPECT_EQ(mine.count(), 0);
    group.barrier();
    std::vector<uint8_t> out(100000, static_cast<uint8_t>(peer));
    bp_request* const send = start(group, BP_SEND, peer, out, BP_INHERIT_TIMEOUT);
    EXPECT_TRUE(eventually([&mine] { return mine.count() > 0; }))
        << "no callback for an operation without a waiting thread";
    EXPECT_EQ(mine.status, BP_OK) << mine.text;
    EXPECT_EQ(in.back(), group.rank());
    EXPECT_EQ(bp_request_wait(send, BP_NO_TIMEOUT, nullptr), BP_OK);
    bp_request_release(send);
    group.barrier();
    EXPECT_EQ(mine.count(), 1);
  });
}

TEST_P(RequestsTest, CallbacksAreCalledAtTheEndOfTheirGroup) {
  CallbackLog log[2];
  in_group([&log](ProcessGroup& group) {
    ProcessGroup other = group.new_group({0, 1});
    std::vector<uint8_t> in(8);
    bp_request* const recv = start(other, BP_RECV, 1 - group.rank(), in, BP_NO_TIMEOUT);
    detail::call(bp_request_on_done, recv, CallbackLog::ended, static_cast<void*>(&log[group.rank()]));
    bp_request_release(recv);
    group.barrier();
    other.destroy();
    EXPECT_EQ(log[group.rank()].count(), 1) << "destroy returned before the callback was called";
    EXPECT_NE(log[group.rank()].status, BP_OK);
  });
}

TEST_P(RequestsTest, CallbacksMayStartOperations) {
  struct Chain {
    ProcessGroup* group;
    std::vector<uint8_t> bytes = std::vector<uint8_t>(64);
    std::atomic<int> left = 20;
    std::atomic<bool> failed = false;
    static void ended(void* ctx, int32_t status, const bp_error*) {
      auto& self = *static_cast<Chain*>(ctx);
      if (status != BP_OK) self.failed = true;
      if (self.left.fetch_sub(1) > 1 && !self.failed) self.next();
    }
    void next() {
      const uint32_t kind = group->rank() == left % 2 ? BP_SEND : BP_RECV;
      bp_request* const request = start(*group, kind, 1 - group->rank(), bytes, BP_INHERIT_TIMEOUT);
      bp_request_on_done(request, ended, this, nullptr);
      bp_request_release(request);
    }
  };
  in_group([](ProcessGroup& group) {
    Chain chain;
    chain.group = &group;
    chain.next();
    EXPECT_TRUE(eventually([&chain] { return chain.left == 0 || chain.failed; }));
    EXPECT_FALSE(chain.failed);
    group.barrier();
  });
}

// They may drop the last handle of a group.
TEST_P(RequestsTest, CallbacksMayNotEndGroupsOrWait) {
  std::atomic<int> refused = 0;
  in_group([&refused](ProcessGroup& group) {
    std::vector<uint8_t> in(10), never(10);
    for (const int tested : {0, 1}) {
      auto other = std::make_shared<ProcessGroup>(group.new_group({0, 1}));
      if (group.rank() != tested) {
        group.barrier();
        other->send(in, tested, 1);
        group.barrier();
        continue;
      }
      Work pending = group.irecv(never, 1 - tested, 99);
      std::atomic<bool> done = false;
      other->irecv(in, 1 - tested, 1).on_done([&, kept = other](const Error* failure) {
        EXPECT_EQ(failure, nullptr) << failure->what();
        for (const auto& end : std::vector<std::function<void()>>{
                 [&kept] { kept->destroy(); },
                 [&group] { group.destroy(); },
                 [&pending] { pending.wait(); },
                 [&pending] { wait_any(std::vector<Work>{pending}); },
             }) {
          std::string text;
          EXPECT_EQ(failure_of(end, &text), Status::kInvalid);
          EXPECT_NE(text.find("a callback of a request must not"), std::string::npos) << text;
          ++refused;
        }
        done = true;
      });
      const std::weak_ptr<ProcessGroup> watched = other;
      other.reset();  // the callback has the last handle
      group.barrier();
      EXPECT_TRUE(eventually([&] { return done && watched.expired(); }));
      group.barrier();
    }
  });
  EXPECT_EQ(refused, 8);
}

TEST_P(RequestsTest, WaitAnyReturnsAnEndedRequest) {
  in_group([](ProcessGroup& group) {
    constexpr uint64_t kMany = 5;
    const int peer = 1 - group.rank();
    std::vector<std::vector<uint8_t>> in(kMany, std::vector<uint8_t>(10));
    std::vector<bp_request*> recvs;
    for (uint32_t i = 0; i < kMany; ++i) recvs.push_back(start(group, BP_RECV, peer, in[i], BP_INHERIT_TIMEOUT, i));
    uint64_t index = 0;
    EXPECT_EQ(bp_request_wait_any(recvs.data(), kMany, 0, &index, nullptr), BP_AGAIN);
    EXPECT_EQ(index, kMany);
    EXPECT_EQ(bp_request_wait_any(recvs.data(), kMany, kSecond / 50, &index, nullptr), BP_AGAIN);
    group.barrier();
    const std::vector<uint8_t> out(10, 1);
    for (const uint32_t tag : {3U, 0U, 4U, 1U, 2U}) {
      group.send(out, peer, tag);
      EXPECT_EQ(bp_request_wait_any(recvs.data(), recvs.size(), BP_NO_TIMEOUT, &index, nullptr), BP_OK);
      ASSERT_EQ(index, std::find_if(in.begin(), in.end(), [](const auto& each) { return each[0] == 1; }) - in.begin());
      EXPECT_EQ(index, tag);
      in[index][0] = 0;
      bp_request_release(recvs[index]);
      recvs[index] = start(group, BP_RECV, peer, in[index], BP_NO_TIMEOUT, 100 + tag);
      group.barrier();
    }
    for (bp_request* recv : recvs) {
      bp_request_cancel(recv);
      EXPECT_EQ(bp_request_wait_any(&recv, 1, BP_NO_TIMEOUT, &index, nullptr), BP_CANCELLED);
      EXPECT_EQ(index, 0U);
      bp_request_release(recv);
    }
  });
}

TEST_P(RequestsTest, SendAndReceiveAtOnce) {
  in_group([](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    std::vector<uint8_t> out(3 << 20, static_cast<uint8_t>(peer));  // too large to be sent before it is received
    std::vector<uint8_t> in(out.size(), 9);
    bp_op send;
    bp_op_init(&send, BP_SEND);
    send.dtype = BP_U8;
    send.peer = peer;
    send.input = {out.data(), out.size(), BP_HOST, 0};
    bp_op recv;
    bp_op_init(&recv, BP_RECV);
    recv.dtype = BP_U8;
    recv.peer = peer;
    recv.output = {in.data(), in.size(), BP_HOST, 0};
    detail::call(bp_group_sendrecv, group.get(), static_cast<const bp_op*>(&send), static_cast<const bp_op*>(&recv));
    EXPECT_EQ(in, std::vector<uint8_t>(in.size(), static_cast<uint8_t>(group.rank())));
    EXPECT_EQ(bp_group_sendrecv(group.get(), &recv, &send, nullptr), BP_INVALID);
  });
}

TEST_P(RequestsTest, TheCallsOfCpp) {
  std::atomic<int> ended = 0;
  in_group([&ended](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    // The group keeps the message; the Work is dropped.
    group.isend(std::vector<int>(200'000, group.rank()), peer, 3).on_done([&ended](const Error* failure) {
      if (failure == nullptr) ++ended;
    });
    std::vector<int> big(200'000);
    std::vector<int> small(1);
    const std::vector<Work> works = {group.irecv(small, peer, 4), group.irecv(big, peer, 3)};
    EXPECT_EQ(wait_any(works), 1U);
    EXPECT_EQ(wait_any({works[0]}, std::chrono::milliseconds(20)), std::nullopt);
    EXPECT_EQ(works[1].received().tag, 3U);
    EXPECT_EQ(big.back(), peer);
    group.barrier();
    group.send(std::span<const int>(big.data(), 1), peer, 4);
    Work(works[0]).wait();
    EXPECT_EQ(wait_any(works), 0U);
    const std::vector<int> out(200'000, 5);
    const Received received = group.sendrecv(out, peer, big, peer, 5);
    EXPECT_EQ(received.source, peer);
    EXPECT_EQ(big.back(), 5);
    Work failed = group.irecv(small, peer, 9);
    failed.cancel();
    std::string group_name;
    EXPECT_EQ(wait_any({failed}), 0U);
    failed.on_done([&group_name](const Error* failure) { group_name = failure->group(); });
    EXPECT_EQ(group_name, "test");
    EXPECT_EQ(name_of(failure_of([&failed] { failed.wait(); })), "cancelled");
    group.check();
    if (group.rank() == 0) group.send_object("an object", peer, 1);
    EXPECT_EQ(group.rank() == 0 ? "an object" : group.recv_object(peer, 1), "an object");
    EXPECT_EQ(group.new_group_by_members({group.rank()}).world_size(), 1);
    int sum = 1;
    group.scan(as_buffer(sum), as_buffer(sum));
    EXPECT_EQ(sum, group.rank() + 1);
    int none = -1;
    group.exscan(as_buffer(sum), as_buffer(none));
    EXPECT_EQ(none, group.rank() == 0 ? -1 : 1);
    std::vector<int> first(2, group.rank());
    std::vector<int> second(2, group.rank() + 10);
    std::vector<int> from_first(2);
    std::vector<int> from_second(2);
    group.all_to_all_list({first, second}, {from_first, from_second});
    EXPECT_EQ(from_first[0], group.rank() == 0 ? 0 : 10);
    EXPECT_EQ(from_second[1], group.rank() == 0 ? 1 : 11);
    group.all_gather_list(first, {from_first, from_second}, {.async_op = true}).wait();
    EXPECT_EQ(from_second[0], 1);
  });
  EXPECT_TRUE(eventually([&ended] { return ended == 2; }));
}

TEST_P(RequestsTest, ListsHaveABufferPerRank) {
  in_group([](ProcessGroup& group) {
    const int rank = group.rank();
    const std::vector<int> first(2, rank + 1);
    const std::vector<int> second(2, 10 * (rank + 1));
    std::vector<int> out(2);
    group.reduce_scatter_list({first, second}, out);
    EXPECT_EQ(out, std::vector<int>(2, rank == 0 ? 3 : 30));
    group.scatter_list(rank == 1 ? std::vector<ConstBuffer>{first, second} : std::vector<ConstBuffer>(), out, 1);
    EXPECT_EQ(out, std::vector<int>(2, rank == 0 ? 2 : 20));
    std::vector<int> from_first(2);
    std::vector<int> from_second(2);
    group.gather_list(second, rank == 0 ? std::vector<Buffer>{from_first, from_second} : std::vector<Buffer>(), 0);
    EXPECT_EQ(from_first, std::vector<int>(2, rank == 0 ? 10 : 0));
    EXPECT_EQ(from_second, std::vector<int>(2, rank == 0 ? 20 : 0));
  });
}

// The buffer is in use until its operation has ended, even if the request was released.
TEST_P(RequestsTest, BuffersOutliveTheRequest) {
  CallbackLog log[2];
  in_group([&log](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    std::vector<uint8_t> out(3 << 20, 1);
    bp_request* const send = start(group, BP_SEND, peer, out, BP_INHERIT_TIMEOUT);
    detail::call(bp_request_on_done, send, CallbackLog::ended, static_cast<void*>(&log[group.rank()]));
    bp_request_release(send);
    group.barrier();
    std::vector<uint8_t> in(out.size());
    group.recv(in, peer);
    EXPECT_EQ(in, std::vector<uint8_t>(in.size(), 1));
    EXPECT_TRUE(eventually([&] { return log[group.rank()].count() == 1; }));
  });
}

}  // namespace
}  // namespace backplane::test
