// SPDX-License-Identifier: Apache-2.0
//
// How groups of nccl end: aborts, deadlines, errors of NCCL, ranks that are gone.
#include "support.hpp"

namespace backplane::test {
namespace {

// The operation of one group waits in a stream behind that of another one, which is stopped a little later: neither
// group has to wait for the other.
TEST(Nccl, StopsGroupsOfOneStreamWhicheverEndsFirst) {
  const Store store = Store::inproc();
  std::promise<void> stopped;
  on_ranks(2, [&store, &stopped](int rank) {
    const Device device = Device::cuda(rank);
    ProcessGroup group = ProcessGroup::create(on_device(nccl(), store, rank, 2, rank));
    ProcessGroup other = group.new_group({0, 1});
    group.barrier();
    other.barrier();
    if (rank == 1) return await(stopped);
    Memory<float> memory = filled<float>(group, device, 4, 1);
    const TestStream stream(device);
    Work first = group.all_reduce(span(memory, device), ReduceOp::kSum, stream.async());
    Work behind = other.all_reduce(span(memory, device), ReduceOp::kSum, stream.async());
    other.abort("the test says so");
    group.abort("here, too");
    EXPECT_EQ(failure_of([&] { behind.wait(); }), Status::kCancelled);
    EXPECT_EQ(failure_of([&] { first.wait(); }), Status::kCancelled);
    stopped.set_value();
  });
}

TEST(Nccl, BreaksTheGroupWhenACollectiveIsCancelled) {
  std::promise<void> cancelled;
  on_devices(2, [&cancelled](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    group.barrier();
    if (group.rank() == 1) return await(cancelled);
    Work work = group.all_reduce(span(memory, device), ReduceOp::kSum, async());
    work.cancel();
    EXPECT_EQ(failure_of([&] { work.wait(); }), Status::kCancelled);
    EXPECT_EQ(failure_of([&] { group.all_reduce(span(memory, device)); }), Status::kCancelled);
    cancelled.set_value();
  });
}

TEST(Nccl, EndsTheGroupWithWhatNcclReports) {
  const ScopedVariable fail("BACKPLANE_DOUBLE_FAIL", "6@2");  // ncclRemoteError
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    group.all_reduce(span(memory, device));
    std::string text;
    EXPECT_EQ(failure_of([&] { group.all_reduce(span(memory, device)); }, &text), Status::kPeerLost) << text;
    failure_of([&] { group.all_reduce(span(memory, device)); });
  });
}

TEST(Nccl, KeepsDeadlinesWhileTheDeviceHangs) {
  const ScopedVariable stall("BACKPLANE_DOUBLE_STALL", "2");
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    group.all_reduce(span(memory, device));
    CallOptions options;
    options.timeout = std::chrono::milliseconds(200);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(failure_of([&] { group.all_reduce(span(memory, device), ReduceOp::kSum, options); }), Status::kTimeout);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  });
}

TEST(Nccl, KeepsDeadlinesWhileStagedBuffersWait) {
  const ScopedVariable stall("BACKPLANE_DOUBLE_STALL", "2");
  on_devices(
      2,
      [](ProcessGroup& group, Device) {
        std::vector<float> host(100'000, 1);
        group.all_reduce(host);
        CallOptions options;
        options.timeout = std::chrono::milliseconds(200);
        EXPECT_EQ(failure_of([&] { group.all_reduce(host, ReduceOp::kSum, options); }), Status::kTimeout);
      },
      nccl("stage=true"));
}

TEST(Nccl, GoesOnWhenARankHasLeft) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, static_cast<float>(group.rank()));
    Memory<float> ones = filled<float>(group, device, 4, 1);
    Work sum = group.all_reduce(span(ones, device), ReduceOp::kSum, async());
    if (group.rank() == 1) {
      sum.wait();
      group.send(span(memory, device), 0, 1);
      return;
    }
    group.recv(span(memory, device), 1, 1);
    EXPECT_TRUE(all_are<float>(memory, 1));
    std::string text;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(failure_of([&] { group.recv(span(memory, device), 1, 2); }, &text), Status::kPeerLost);
      EXPECT_TRUE(contains(text, "has left the group")) << text;
    }
    // The collective was done before that, though nobody has asked; the group goes on.
    Work own = group.send(span(memory, device), 0, 3, async());
    group.recv(span(memory, device), 0, 3);
    own.wait();
    sum.wait();
    EXPECT_TRUE(all_are<float>(ones, 2));
  });
}

// Its message is in a channel, behind a collective that only the end of the group stops.
TEST(Nccl, EndsWhenAPeerOfAMessageIsLost) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    group.barrier();
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CallOptions async;
    async.async_op = true;
    async.stream = stream;
    const Buffer nothing(memory.data(), 0, dtype_of<float>, device);
    if (group.rank() == 1) {
      Work received = group.recv(span(memory, device), 0, 1, async);
      group.recv(nothing, 0, 2);
      group.send(nothing, 0, 3);
      group.recv(nothing, 0, 4);
      group.abort("the test says so");
      EXPECT_EQ(failure_of([&] { received.wait(); }), Status::kCancelled);
    } else {
      Work sum = group.all_reduce(span(memory, device), ReduceOp::kSum, async);
      Work sent = group.send(span(memory, device), 1, 1, async);
      group.send(nothing, 1, 2);
      group.recv(nothing, 1, 3);  // ready has come before it
      group.send(nothing, 1, 4);  // and goes after begin
      EXPECT_EQ(failure_of([&] { sum.wait(); }), Status::kPeerLost);
      EXPECT_EQ(failure_of([&] { sent.wait(); }), Status::kPeerLost);
    }
    cudaStreamDestroy(stream);
  });
}

}  // namespace
}  // namespace backplane::test
