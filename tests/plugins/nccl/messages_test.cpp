// SPDX-License-Identifier: Apache-2.0
//
// Messages of nccl.
#include "support.hpp"

namespace backplane::test {
namespace {

TEST(Nccl, PingPongsBetweenDevices) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> ball = filled<float>(group, device, 1, 0);
    const int other = 1 - group.rank();
    for (int step = 0; step < 2; ++step) {
      if (group.rank() == step) {
        ball[0] += 1;
        group.send(span(ball, device), other, 7);
      } else {
        EXPECT_EQ(group.recv(span(ball, device), other, 7).received().source, other);
      }
    }
    EXPECT_EQ(ball[0], 2.0F);
  });
}

// The whole batch arrives while the channel is being created.
TEST(Nccl, SendsABatchAsGroupsOfNccl) {
  constexpr uint64_t kMessages = 8;  // in each direction
  const ScopedVariable slow("BACKPLANE_DOUBLE_SLOW", "300");
  const uint64_t before = double_message_launches();
  on_devices(2, [](ProcessGroup& group, Device device) {
    const TestStream stream(device);
    std::vector<Memory<int32_t>> data;
    std::vector<bp_op> ops;
    for (uint64_t i = 0; i < 2 * kMessages; ++i) {
      const bool sends = i < kMessages;
      data.push_back(filled<int32_t>(group, device, 10 + i, sends ? static_cast<int32_t>(i) : -1));
      const Buffer buffer = span(data.back(), device);
      ops.push_back(ProcessGroup::make_op(sends ? BP_SEND : BP_RECV, sends ? buffer : Buffer(),
                                          sends ? Buffer() : buffer, stream.async()));
      ops.back().peer = 1 - group.rank();
      ops.back().tag = i % kMessages;
    }
    std::vector<const bp_op*> pointers;
    for (const bp_op& op : ops) pointers.push_back(&op);
    std::vector<bp_request*> requests(ops.size());
    bp_error err;
    bp_error_init(&err);
    ASSERT_EQ(bp_group_submit_batch(group.get(), pointers.data(), pointers.size(), requests.data(), &err), BP_OK);
    for (bp_request* const request : requests) {
      EXPECT_EQ(bp_request_wait(request, BP_NO_TIMEOUT, &err), BP_OK) << err.text;
      bp_request_release(request);
    }
    for (uint64_t i = 0; i < kMessages; ++i) {
      const Memory<int32_t>& got = data[kMessages + i];
      EXPECT_TRUE(std::all_of(got.begin(), got.begin() + 10, [i](int32_t n) { return n == static_cast<int32_t>(i); }));
    }
  });
  EXPECT_LT(double_message_launches() - before, 4 * kMessages);
}

TEST(Nccl, CancelsMessagesWithoutAReceiver) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    const int other = 1 - group.rank();
    Work sent = group.send(span(memory, device), other, 1, async());
    Work received = group.recv(span(memory, device), other, 2, async());
    sent.cancel();
    received.cancel();
    EXPECT_EQ(failure_of([&] { sent.wait(); }), Status::kCancelled);
    EXPECT_EQ(failure_of([&] { received.wait(); }), Status::kCancelled);
    group.all_reduce(span(memory, device));
    EXPECT_TRUE(all_are(memory, 2.0F));
  });
}

// The state of a receive must end with it, even if it fails: the next one may have its address.
TEST(Nccl, ReceivesIntoHostAndDeviceMemory) {
  on_devices(
      2,
      [](ProcessGroup& group, Device device) {
        Memory<float> memory = filled<float>(group, device, 4, static_cast<float>(group.rank()));
        std::vector<float> host(4, 7);
        const std::vector<float> nothing;
        const int other = 1 - group.rank();
        for (int round = 0; round < 5; ++round) {
          if (group.rank() == 0) {
            group.send(nothing, other, 1);
            group.send(host, other, 2);
            group.send(span(memory, device), other, 3);
          } else {
            group.recv(host, other, 1);
            std::vector<float> short_one(2);
            EXPECT_EQ(failure_of([&] { group.recv(short_one, other, 2); }), Status::kInvalid);
            group.recv(span(memory, device), other, 3);
            EXPECT_TRUE(all_are<float>(memory, 0));
          }
        }
        Work sent = group.send(host, group.rank(), 4, async());
        group.recv(span(memory, device), group.rank(), 4);
        sent.wait();
        EXPECT_TRUE(all_are<float>(memory, 7));
        sent = group.send(span(memory, device), group.rank(), 5, async());
        std::vector<float> back(4);
        group.recv(back, group.rank(), 5);
        sent.wait();
        EXPECT_EQ(back, host);
      },
      nccl("stage=true"));
}

}  // namespace
}  // namespace backplane::test
