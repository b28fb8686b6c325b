// SPDX-License-Identifier: Apache-2.0
//
// What only nccl does, over the double of NCCL and CUDA: "device memory" is host memory here, and may be looked at.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <optional>

#include "backplane/multigpu.hpp"
#include "double/settings.hpp"
#include "support/environment.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

constexpr const char* kDouble = BACKPLANE_NCCL_DOUBLE;

std::string nccl(const std::string& options = {}) {
  return std::string("nccl?library=") + kDouble + (options.empty() ? "" : "&") + options;
}

GroupOptions on_device(const std::string& backend, const Store& store, int rank, int world_size, int device) {
  GroupOptions options = group_options(backend, store, rank, world_size);
  options.device = device;
  return options;
}

// Runs body(group, device) on ranks that have a device each, in one process.
void on_devices(int world_size, const std::function<void(ProcessGroup&, Device)>& body,
                const std::string& backend = nccl()) {
  const Store store = Store::inproc();
  on_ranks(world_size, [&](int rank) {
    ProcessGroup group = ProcessGroup::create(on_device(backend, store, rank, world_size, rank));
    body(group, Device::cuda(rank));
  });
}

template <Element T>
Buffer span(Memory<T>& memory, Device device) {
  return Buffer(memory.data(), memory.size(), dtype_of<T>, device);
}

template <Element T>
Memory<T> filled(ProcessGroup& group, Device device, uint64_t count, T value) {
  Memory<T> memory = group.allocate<T>(count, device);
  std::fill(memory.begin(), memory.end(), value);
  return memory;
}

template <Element T>
bool all_are(const Memory<T>& memory, T value) {
  return std::all_of(memory.begin(), memory.end(), [value](T each) { return each == value; });
}

CallOptions async() {
  CallOptions options;
  options.async_op = true;
  return options;
}

void await(std::promise<void>& event) {
  EXPECT_EQ(event.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What a group of one rank fails to start with.
std::string refusal(const std::string& backend, Status expected, int device = 0) {
  std::string text;
  const auto start = [&] { ProcessGroup::create(on_device(backend, Store::inproc(), 0, 1, device)); };
  EXPECT_EQ(failure_of(start, &text), expected) << text;
  return text;
}

TEST(Nccl, SaysWhichLibraryOrFunctionIsMissing) {
  const std::string none = refusal("nccl?library=/nowhere/libnccl.so.2", Status::kUnsupported);
  EXPECT_TRUE(contains(none, "NCCL cannot be loaded") && contains(none, "/nowhere/libnccl.so.2")) << none;
  const std::string other = refusal("nccl?library=libm.so.6", Status::kUnsupported);
  EXPECT_TRUE(contains(other, "libm.so.6 has no function ncclGetVersion")) << other;
}

TEST(Nccl, SaysThatDriverOrDeviceIsMissing) {
  {
    const ScopedVariable no_driver("BACKPLANE_DOUBLE_DRIVER", "0");
    const std::string text = refusal(nccl(), Status::kUnsupported);
    EXPECT_TRUE(contains(text, "no CUDA driver")) << text;
  }
  {
    const ScopedVariable old_driver("BACKPLANE_DOUBLE_DRIVER", "11040");
    const std::string text = refusal(nccl(), Status::kUnsupported);
    EXPECT_TRUE(contains(text, "driver for CUDA 11.4")) << text;
  }
  const ScopedVariable no_device("BACKPLANE_DOUBLE_DEVICES", "0");
  const std::string text = refusal(nccl(), Status::kUnsupported);
  EXPECT_TRUE(contains(text, "no CUDA device")) << text;
}

TEST(Nccl, NeverGuessesTheDevice) {
  EXPECT_TRUE(contains(refusal(nccl(), Status::kInvalid, -1), "no device was named for rank 0"));
  EXPECT_TRUE(contains(refusal(nccl(), Status::kInvalid, 8), "there is no device 8; there are 8"));
  EXPECT_TRUE(contains(refusal(nccl("device=first"), Status::kInvalid), "option device is a number"));
  const ProcessGroup group =
      ProcessGroup::create(group_options(nccl("device=7"), Store::inproc(), 0, 1));  // the option is a name, too
  EXPECT_EQ(group.backend(Device::cuda(7)), "nccl");
}

TEST(Nccl, ReducesDeviceBuffersOfSeveralDevicesInOneProcess) {
  on_devices(3, [](ProcessGroup& group, Device device) {
    Memory<int64_t> sum = filled<int64_t>(group, device, 1000, group.rank() + 1);
    EXPECT_TRUE(sum.native());
    group.all_reduce(span(sum, device));
    EXPECT_TRUE(all_are<int64_t>(sum, 6));
    Memory<float> all = filled<float>(group, device, 3, -1);
    Memory<float> mine = filled<float>(group, device, 1, static_cast<float>(group.rank()));
    CallOptions async;
    async.async_op = true;
    group.all_gather(span(mine, device), span(all, device), async).wait();
    EXPECT_TRUE(all[0] == 0 && all[1] == 1 && all[2] == 2);
    group.barrier();
  });
}

TEST(Nccl, DoesWithoutFunctionsOfNewerLibraries) {
  on_devices(
      2,
      [](ProcessGroup& group, Device device) {
        Memory<float> sum = filled<float>(group, device, 10, 1);
        group.all_reduce(span(sum, device));
        EXPECT_TRUE(all_are(sum, 2.0F));
        Memory<float> blocks = filled<float>(group, device, 2, static_cast<float>(group.rank()));
        group.all_to_all(span(blocks, device), span(blocks, device));
        EXPECT_TRUE(blocks[0] == 0 && blocks[1] == 1);
      },
      std::string("nccl?library=") + BACKPLANE_NCCL_DOUBLE_OLD);
}

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

TEST(Nccl, TakesItsPlaceInTheCallersStream) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    constexpr uint64_t kCount = 100'000;
    Memory<int32_t> data = filled<int32_t>(group, device, kCount, 0);
    Memory<int32_t> before = filled<int32_t>(group, device, kCount, group.rank() + 1);
    Memory<int32_t> after = filled<int32_t>(group, device, kCount, 0);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    group.barrier();  // both are there, so that no launch has to wait for a peer
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

// A stream of the device, which this thread chooses.
class TestStream {
 public:
  explicit TestStream(Device device) {
    EXPECT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  cudaStream_t get() const { return stream_; }
  CallOptions async() const {
    CallOptions options;
    options.async_op = true;
    options.stream = stream_;
    return options;
  }
  void copy(Memory<int32_t>& to, const Memory<int32_t>& from) const {
    cudaMemcpyAsync(to.data(), from.data(), from.size() * 4, cudaMemcpyDeviceToDevice, stream_);
  }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST(Nccl, HasAStreamWaitForACollectiveInsteadOfTheHost) {
  std::promise<void> ordered;
  on_devices(2, [&ordered](ProcessGroup& group, Device device) {
    Memory<int32_t> data = filled<int32_t>(group, device, 1000, group.rank() + 1);
    Memory<int32_t> after = filled<int32_t>(group, device, 1000, 0);
    const TestStream stream(device);
    const TestStream later(device);
    group.barrier();
    if (group.rank() == 1) await(ordered);
    Work work = group.all_reduce(span(data, device), ReduceOp::kSum, stream.async());
    work.order(later.get());
    later.copy(after, data);
    if (group.rank() == 0) {
      EXPECT_FALSE(work.is_completed());  // the other rank is not there yet
      ordered.set_value();
    }
    ASSERT_EQ(cudaStreamSynchronize(later.get()), cudaSuccess);
    EXPECT_TRUE(all_are<int32_t>(after, 3));
    work.wait();
    work.order(later.get());
    group.barrier();
  });
}

TEST(Nccl, HasAStreamWaitForAMessageInsteadOfTheHost) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<int32_t> sum = filled<int32_t>(group, device, 10, 1);
    Memory<int32_t> data = filled<int32_t>(group, device, 1000, group.rank());
    Memory<int32_t> after = filled<int32_t>(group, device, 1000, 0);
    const TestStream stream(device);
    const TestStream later(device);
    group.barrier();
    if (group.rank() == 1) {  // the message waits in the stream, behind a collective that is still to come
      Work summed = group.all_reduce(span(sum, device), ReduceOp::kSum, stream.async());
      Work sent = group.send(span(data, device), 0, 1, stream.async());
      sent.wait();
      summed.wait();
      return;
    }
    Work received = group.recv(span(data, device), 1, 1, stream.async());
    received.order(later.get());
    later.copy(after, data);
    EXPECT_FALSE(received.is_completed());
    group.all_reduce(span(sum, device));
    ASSERT_EQ(cudaStreamSynchronize(later.get()), cudaSuccess);
    EXPECT_TRUE(all_are<int32_t>(after, 1));
    received.wait();
  });
}

TEST(Nccl, HasTheHostWaitForWhatEndsOnIt) {
  on_devices(
      2,
      [](ProcessGroup& group, Device) {
        std::vector<float> host(100, 1);
        Work sum = group.all_reduce(host, ReduceOp::kSum, async());
        sum.order(nullptr);
        EXPECT_EQ(host, std::vector<float>(100, 2));
        Work sent = group.send(host, 1 - group.rank(), 0, async());
        Work received = group.recv(host, 1 - group.rank(), 0, async());
        received.order(nullptr);
        sent.order(nullptr);
        EXPECT_TRUE(received.is_completed() && sent.is_completed());
      },
      nccl("stage=true"));
}

// While a channel is being made, all of a batch comes to it.
TEST(Nccl, SendsABatchAsGroupsOfNccl) {
  constexpr uint64_t kMessages = 8;  // each way
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

TEST(Nccl, RefusesWhatIsNotOnItsDevice) {
  on_devices(1, [](ProcessGroup& group, Device device) {
    std::vector<float> host(4);
    std::string text;
    EXPECT_EQ(failure_of([&] { group.all_reduce(host); }, &text), Status::kUnsupported);
    EXPECT_TRUE(contains(text, "nccl") && contains(text, "cpu memory")) << text;
    Memory<float> memory = filled<float>(group, device, 4, 1);
    EXPECT_EQ(failure_of([&] { group.all_reduce(span(memory, Device::cuda(5))); }, &text), Status::kInvalid);
    EXPECT_TRUE(contains(text, "this buffer is on device 5")) << text;
  });
}

TEST(Nccl, StagesHostBuffersWhenAsked) {
  on_devices(
      2,
      [](ProcessGroup& group, Device) {
        std::vector<double> host(5000, group.rank() + 0.5);
        group.all_reduce(host);
        EXPECT_EQ(host, std::vector<double>(5000, 2.0));
      },
      nccl("stage=true"));
}

#ifdef BACKPLANE_TEST_gloo
TEST(Nccl, SharesAGroupWithABackendForTheHost) {
  on_devices(
      2,
      [](ProcessGroup& group, Device device) {
        EXPECT_EQ(group.backend(), "gloo");
        EXPECT_EQ(group.backend(device), "nccl");
        std::vector<int> host = {group.rank()};
        Memory<int32_t> memory = filled<int32_t>(group, device, 1, group.rank());
        group.all_reduce(host);
        group.all_reduce(span(memory, device));
        EXPECT_EQ(host[0], 1);
        EXPECT_EQ(memory[0], 1);
        group.barrier();
      },
      "cpu:gloo,cuda:" + nccl());
}
#endif

#ifdef BACKPLANE_TEST_gloo
struct CudaFree {
  void operator()(int32_t* data) const { cudaFree(data); }
};
using Numbers = std::unique_ptr<int32_t, CudaFree>;

Numbers numbers_on(Device device, uint64_t count, int32_t value) {
  void* data = nullptr;
  EXPECT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, count * 4), cudaSuccess);
  Numbers numbers(static_cast<int32_t*>(data));
  std::fill_n(numbers.get(), count, value);
  return numbers;
}

TEST(Nccl, ReducesOverSeveralDevicesOfEachRank) {
  const ScopedVariable library("BACKPLANE_NCCL_LIBRARY", kDouble);
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    ProcessGroup group = ProcessGroup::create(on_device("cpu:gloo,cuda:nccl", store, rank, 2, 2 * rank));
    const std::array devices = {Device::cuda(2 * rank), Device::cuda(2 * rank + 1)};
    std::vector<Numbers> data;
    std::vector<Buffer> buffers;
    std::vector<Numbers> gathered;
    std::vector<Buffer> outs;
    for (size_t i = 0; i < 2; ++i) {
      data.push_back(numbers_on(devices[i], 100, 2 * rank + static_cast<int32_t>(i)));
      buffers.emplace_back(data.back().get(), 100, DType::kI32, devices[i]);
      gathered.push_back(numbers_on(devices[i], 400, -1));
      outs.emplace_back(gathered.back().get(), 400, DType::kI32, devices[i]);
    }
    all_gather_multigpu(outs, buffers, group);
    for (const Numbers& each : gathered) {
      for (int k = 0; k < 4; ++k) EXPECT_EQ(each.get()[static_cast<uint64_t>(k) * 100], k);  // rank * 2 + i
    }
    all_reduce_multigpu(buffers, ReduceOp::kMax, group);
    EXPECT_TRUE(data[0].get()[99] == 3 && data[1].get()[99] == 3);
    data[1].get()[0] = 10 * (rank + 1);
    broadcast_multigpu(buffers, 1, group, 1);
    EXPECT_EQ(*data[0], 20);
    EXPECT_EQ(*data[1], 20);
    reduce_multigpu(buffers, 0, ReduceOp::kSum, group, 1);
    EXPECT_EQ(*data[1], rank == 0 ? 80 : 20);
    EXPECT_EQ(*data[0], 20);
    // Other devices than before make another group; here the ranks bring different numbers of them.
    std::vector<Buffer> others(rank == 0 ? 1 : 3, buffers[1]);
    EXPECT_EQ(failure_of([&] { all_reduce_multigpu(others, ReduceOp::kSum, group); }), Status::kInvalid);
    group.barrier();
  });
  clear_group_cache();
}
#endif

TEST(Nccl, OrdersOnTheRegisteredStream) {
  on_devices(1, [](ProcessGroup& group, Device device) {
    constexpr uint64_t kCount = 100'000;
    Memory<int32_t> data = filled<int32_t>(group, device, kCount, 0);
    Memory<int32_t> before = filled<int32_t>(group, device, kCount, 5);
    Memory<int32_t> after = filled<int32_t>(group, device, kCount, 0);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    register_stream(stream, device);
    cudaMemcpyAsync(data.data(), before.data(), kCount * 4, cudaMemcpyDeviceToDevice, stream);
    group.all_reduce(span(data, device), span(after, device));
    EXPECT_TRUE(all_are<int32_t>(after, 5));
    register_stream(nullptr, device);
    cudaStreamDestroy(stream);
  });
}

TEST(Nccl, AveragesAndWeighs) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    const auto rank = static_cast<float>(group.rank());
    Memory<float> mean = filled<float>(group, device, 5, 1 + rank);
    group.all_reduce(span(mean, device), ReduceOp::kAvg);
    EXPECT_TRUE(all_are(mean, 1.5F));
    Memory<int64_t> whole = filled<int64_t>(group, device, 5, -3 + 2 * group.rank());  // -4 / 2
    group.all_reduce(span(whole, device), ReduceOp::kAvg);
    EXPECT_TRUE(all_are<int64_t>(whole, -2));
    Memory<float> weighed = filled<float>(group, device, 5, 1 + rank);
    group.all_reduce_premul_sum(span(weighed, device), span(weighed, device), 10 * rank + 1);
    EXPECT_TRUE(all_are(weighed, 1 * 1 + 2 * 11.0F));
  });
}

TEST(Nccl, RefusesWhatOtherRanksDoNot) {
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    std::string text;
    const auto differ = [&] {
      if (group.rank() == 0) group.all_reduce(span(memory, device));
      if (group.rank() == 1) group.broadcast(span(memory, device), 0);
    };
    EXPECT_EQ(failure_of(differ, &text), Status::kInvalid) << text;
    EXPECT_TRUE(contains(text, "all_reduce") && contains(text, "broadcast")) << text;
  });
}

TEST(Nccl, TakesBackAMessageThatNobodyReceives) {
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

TEST(Nccl, IsWhatAutoTakesForDevices) {
  const ScopedVariable library("BACKPLANE_NCCL_LIBRARY", kDouble);
  on_devices(
      2,
      [](ProcessGroup& group, Device device) {
        EXPECT_EQ(group.backend(device), "nccl");
        EXPECT_NE(group.backend(), "nccl");
        std::vector<int> host = {1};
        Memory<int32_t> memory = filled<int32_t>(group, device, 1, 1);
        group.all_reduce(host);
        group.all_reduce(span(memory, device));
        EXPECT_EQ(host[0] + memory[0], 4);
      },
      "auto");
  // One rank alone has it, too; none without a driver, and the host is served all the same.
  const ProcessGroup alone = ProcessGroup::create(on_device("auto", Store::inproc(), 0, 1, 3));
  EXPECT_EQ(alone.backend(), "self");
  EXPECT_EQ(alone.backend(Device::cuda(3)), "nccl");
  const ScopedVariable no_driver("BACKPLANE_DOUBLE_DRIVER", "0");
  const ProcessGroup without = ProcessGroup::create(on_device("auto", Store::inproc(), 0, 1, 3));
  EXPECT_EQ(without.backend(Device::cuda(3)), "self");
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

// What is kept for a receive ends with it, however it ends: the next one may have its address.
TEST(Nccl, ReceivesIntoBothMemories) {
  on_devices(
      2,
      [](ProcessGroup& group, Device device) {
        Memory<float> memory = filled<float>(group, device, 4, static_cast<float>(group.rank()));
        std::vector<float> host(4, 7);
        const int other = 1 - group.rank();
        for (int round = 0; round < 5; ++round) {
          if (group.rank() == 0) {
            group.send(std::vector<float>(), other, 1);
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

TEST(Nccl, ReducesF8WhereDevicesCan) {
  const auto status = [] {
    std::optional<Status> found;  // none: it worked
    on_devices(1, [&found](ProcessGroup& group, Device device) {
      Memory<uint8_t> memory = filled<uint8_t>(group, device, 4, 0);
      try {
        group.all_reduce(Buffer(memory.data(), 4, DType::kF8E4M3, device));
      } catch (const Error& e) {
        found = e.status();
      }
    });
    return found;
  };
  EXPECT_EQ(status(), std::nullopt);
  const ScopedVariable old("BACKPLANE_DOUBLE_CC", "80");
  EXPECT_EQ(status(), Status::kUnsupported);
}

TEST(Nccl, GivesOutMemoryWhileNcclLaunches) {
  const ScopedVariable slow("BACKPLANE_DOUBLE_SLOW", "300");
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    group.barrier();
    CallOptions async;
    async.async_op = true;
    Work work = group.all_reduce(span(memory, device), ReduceOp::kSum, async);
    filled<float>(group, device, 8, 1);  // given back at once
    work.wait();
    EXPECT_TRUE(all_are<float>(memory, 2));
  });
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
