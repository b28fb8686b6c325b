// SPDX-License-Identifier: Apache-2.0
//
// The order of operations in streams of the caller.
#include <thread>

#include "backplane/compat/streams.hpp"
#include "support.hpp"

namespace backplane::test {
namespace {

TEST(Nccl, RunsInOrderInTheCallersStream) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    constexpr uint64_t kCount = 100'000;
    Memory<int32_t> data = filled<int32_t>(group, device, kCount, 0);
    Memory<int32_t> before = filled<int32_t>(group, device, kCount, group.rank() + 1);
    Memory<int32_t> after = filled<int32_t>(group, device, kCount, 0);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    group.barrier();  // connects the peers, so that no launch has to wait for them
    cudaMemcpyAsync(data.data(), before.data(), kCount * 4, cudaMemcpyDeviceToDevice, stream);
    CallOptions options;
    options.async_op = true;
    options.stream = stream;
    Work work = group.all_reduce(span(data, device), ReduceOp::kSum, options);
    cudaMemcpyAsync(after.data(), data.data(), kCount * 4, cudaMemcpyDeviceToDevice, stream);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_TRUE(all_are<int32_t>(after, 3));
    work.wait();
    group.barrier();
    cudaStreamDestroy(stream);
  });
}

// NCCL launches late on its own thread. Later work in the stream sees the result all the same.
TEST(Nccl, RunsInOrderInTheCallersStreamWhenLaunchedLate) {
  const ScopedVariable late("BACKPLANE_DOUBLE_LATE", "20000");
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<int32_t> data = filled<int32_t>(group, device, 1000, 1);
    Memory<int32_t> after = filled<int32_t>(group, device, 1000, 0);
    const TestStream stream(device);
    group.all_reduce(span(data, device));  // connects the peers
    std::vector<Work> works;
    for (int32_t i = 0; i < 3; ++i) {
      works.push_back(group.all_reduce(span(data, device), ReduceOp::kSum, stream.async()));
      stream.copy(after, data);
      ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      EXPECT_TRUE(all_are<int32_t>(after, 4 << i)) << after[0];
    }
    for (Work& work : works) work.wait();
    group.barrier();
  });
}

TEST(Nccl, OrdersOnTheRegisteredStream) {
  on_devices(1, [](ProcessGroup& group, Device device) {
    constexpr uint64_t kCount = 100'000;
    Memory<int32_t> data = filled<int32_t>(group, device, kCount, 0);
    Memory<int32_t> before = filled<int32_t>(group, device, kCount, 5);
    Memory<int32_t> after = filled<int32_t>(group, device, kCount, 0);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    compat::register_stream(stream, device);
    cudaMemcpyAsync(data.data(), before.data(), kCount * 4, cudaMemcpyDeviceToDevice, stream);
    group.all_reduce(span(data, device), span(after, device), ReduceOp::kSum,
                     {.stream = compat::registered_stream(device)});
    EXPECT_TRUE(all_are<int32_t>(after, 5));
    compat::register_stream(nullptr, device);
    cudaStreamDestroy(stream);
  });
}

// Layers must not change the order.
class NcclStreams : public testing::TestWithParam<const char*> {
 private:
  const ScopedVariable layers_{"BACKPLANE_LAYERS", GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Layers, NcclStreams,
                         testing::Values("", "trace", "validate", "chaos?rules=chance 0.5: delay 0us..200us",
                                         "trace,validate,chaos?rules=chance 0.5: delay 0us..200us"),
                         [](const auto& info) { return "stack_" + std::to_string(info.index); });

TEST_P(NcclStreams, MakeAStreamWaitForACollective) {
  std::promise<void> ordered;
  on_devices(2, [&ordered](ProcessGroup& group, Device device) {
    Memory<int32_t> data = filled<int32_t>(group, device, 1000, group.rank() + 1);
    Memory<int32_t> after = filled<int32_t>(group, device, 1000, 0);
    const TestStream stream(device);
    const TestStream later(device);
    group.barrier();
    if (group.rank() == 1) await(ordered);
    Work work = group.all_reduce(span(data, device), ReduceOp::kSum, stream.async());
    work.wait_on_stream(later.get());
    later.copy(after, data);
    if (group.rank() == 0) {
      EXPECT_FALSE(work.is_completed());  // the other rank has not submitted it
      ordered.set_value();
    }
    ASSERT_EQ(cudaStreamSynchronize(later.get()), cudaSuccess);
    EXPECT_TRUE(all_are<int32_t>(after, 3));
    work.wait();
    work.wait_on_stream(later.get());
    group.barrier();
  });
}

// Another thread is in wait or about to call it.
TEST_P(NcclStreams, MakeAStreamWaitWhileAThreadWaits) {
  std::promise<void> ordered;
  on_devices(2, [&ordered](ProcessGroup& group, Device device) {
    Memory<int32_t> data = filled<int32_t>(group, device, 10, 1);
    const TestStream stream(device);
    const TestStream later(device);
    group.barrier();
    if (group.rank() == 1) await(ordered);
    Work work = group.all_reduce(span(data, device), ReduceOp::kSum, stream.async());
    std::promise<void> waiting;
    auto waited = std::async(std::launch::async, [&work, &waiting] {
      waiting.set_value();
      work.wait();
    });
    await(waiting);
    for (int i = 0; i < 1000; ++i) {
      work.wait_on_stream(later.get());
      std::this_thread::yield();
    }
    if (group.rank() == 0) {
      EXPECT_FALSE(work.wait_for(std::chrono::milliseconds(1)));
      ordered.set_value();
    }
    waited.get();
    EXPECT_TRUE(all_are<int32_t>(data, 2));
  });
}

TEST_P(NcclStreams, MakeAStreamWaitForAMessage) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<int32_t> sum = filled<int32_t>(group, device, 10, 1);
    Memory<int32_t> data = filled<int32_t>(group, device, 1000, group.rank());
    Memory<int32_t> after = filled<int32_t>(group, device, 1000, 0);
    const TestStream stream(device);
    const TestStream later(device);
    group.barrier();
    if (group.rank() == 1) {  // the message waits behind a collective that the other rank submits later
      Work summed = group.all_reduce(span(sum, device), ReduceOp::kSum, stream.async());
      Work sent = group.send(span(data, device), 0, 1, stream.async());
      sent.wait();
      summed.wait();
      return;
    }
    Work received = group.recv(span(data, device), 1, 1, stream.async());
    received.wait_on_stream(later.get());
    later.copy(after, data);
    EXPECT_FALSE(received.is_completed());
    group.all_reduce(span(sum, device));
    ASSERT_EQ(cudaStreamSynchronize(later.get()), cudaSuccess);
    EXPECT_TRUE(all_are<int32_t>(after, 1));
    received.wait();
  });
}

// In the default stream, the operations of `other` would wait for one that waits for them.
TEST(Nccl, OrdersNothingWithoutAStream) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    ProcessGroup other = group.with_backend(nccl());
    Memory<int32_t> late = filled<int32_t>(group, device, 10, 1);
    Memory<int32_t> sum = filled<int32_t>(group, device, 10, 1);
    Memory<int32_t> message = filled<int32_t>(group, device, 10, group.rank() + 5);
    CallOptions apart;
    apart.stream = kNoStream;
    group.barrier();
    other.barrier();
    Work waits;
    if (group.rank() == 0) waits = group.all_reduce(span(late, device), ReduceOp::kSum, async());
    other.all_reduce(span(sum, device), ReduceOp::kSum, apart);
    EXPECT_TRUE(all_are<int32_t>(sum, 2));
    if (group.rank() == 0) {
      EXPECT_FALSE(waits.is_completed());
      other.send(span(message, device), 1, 0, apart);
    } else {
      other.recv(span(message, device), 0, 0, apart);
      EXPECT_TRUE(all_are<int32_t>(message, 5));
      waits = group.all_reduce(span(late, device), ReduceOp::kSum, async());
    }
    waits.wait();
    EXPECT_TRUE(all_are<int32_t>(late, 2));
  });
}

TEST(Nccl, BlocksInWaitOnStreamForHostBuffers) {
  on_devices(
      2,
      [](ProcessGroup& group, Device) {
        std::vector<float> host(100, 1);
        Work sum = group.all_reduce(host, ReduceOp::kSum, async());
        sum.wait_on_stream(nullptr);
        EXPECT_EQ(host, std::vector<float>(100, 2));
        Work sent = group.send(host, 1 - group.rank(), 0, async());
        Work received = group.recv(host, 1 - group.rank(), 0, async());
        received.wait_on_stream(nullptr);
        sent.wait_on_stream(nullptr);
        EXPECT_TRUE(received.is_completed() && sent.is_completed());
      },
      nccl("stage=true"));
}

}  // namespace
}  // namespace backplane::test
