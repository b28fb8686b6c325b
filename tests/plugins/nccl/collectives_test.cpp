// SPDX-License-Identifier: Apache-2.0
//
// Collectives, where nccl differs from other backends: several devices in one process, refused operations, staging,
// subgroups, device memory. The conformance cases check the results of all collectives.
#include <array>
#include <barrier>
#include <future>
#include <memory>

#include "backplane/compat/multigpu.hpp"
#include "support.hpp"

namespace backplane::test {
namespace {

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

TEST(Nccl, RefusesCollectivesThatDifferBetweenRanks) {
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

TEST(Nccl, RefusesBuffersThatAreNotOnItsDevice) {
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
        const std::vector<std::string> objects = group.all_gather_object(group.rank() == 0 ? "first" : "");
        EXPECT_EQ(objects, (std::vector<std::string>{"first", ""}));
      },
      nccl("stage=true"));
}

// Subgroups create communicators of their own, because the parent's may have been aborted.
TEST(Nccl, SplitsAndShrinks) {
  BarrierLeftByAll barrier(3);
  on_devices(
      3,
      [&barrier](ProcessGroup& group, Device device) {
        const auto sum_over = [device](ProcessGroup& ranks) {
          Memory<int32_t> ones = filled<int32_t>(ranks, device, 4, 1);
          ranks.all_reduce(span(ones, device));
          EXPECT_TRUE(all_are<int32_t>(ones, ranks.world_size()));
        };
        ProcessGroup part = group.split(group.rank() % 2);
        EXPECT_EQ(part.world_size(), group.rank() == 1 ? 1 : 2);
        sum_over(part);
        sum_over(group);
        barrier(group);
        if (group.rank() == 0) group.abort("the test says so");
        failure_of([&] { group.barrier(); });
        ProcessGroup rest = group.shrink();
        EXPECT_EQ(rest.world_size(), 3);
        sum_over(rest);
      },
      nccl("stage=true"));
}

// Colors and keys are exchanged through the store if no backend accepts host memory.
TEST(Nccl, SplitsWithoutHostMemory) {
  for (const std::string& backend : {nccl(), "cuda:" + nccl()}) {
    on_devices(
        3,
        [](ProcessGroup& group, Device device) {
          for (int round = 0; round < 2; ++round) {
            ProcessGroup part = group.split(group.rank() == 1 ? -1 : 7, -group.rank());
            if (group.rank() == 1) {
              EXPECT_LT(part.rank(), 0);
              continue;
            }
            EXPECT_EQ(part.rank(), group.rank() == 2 ? 0 : 1);
            Memory<int32_t> ones = filled<int32_t>(part, device, 4, 1);
            part.all_reduce(span(ones, device));
            EXPECT_TRUE(all_are<int32_t>(ones, 2));
          }
        },
        backend);
  }
}

TEST(Nccl, EndsASplitThatIsAbortedOrTimesOut) {
  const Store store = Store::inproc();
  std::barrier together(2);
  on_ranks(2, [&](int rank) {
    GroupOptions options = on_device(nccl(), store, rank, 2, rank);
    options.timeout = std::chrono::seconds(5);  // also of init
    ProcessGroup group = ProcessGroup::create(options);
    std::string text;
    if (rank == 0) {
      EXPECT_EQ(failure_of([&] { group.split(0); }, &text), Status::kTimeout);
      EXPECT_NE(text.find("rank 1 did not come within 5 s"), std::string::npos) << text;
      auto waiting = std::async(std::launch::async, [&] { return failure_of([&] { group.split(0); }, &text); });
      group.abort("the test says so");
      EXPECT_EQ(waiting.get(), Status::kCancelled);
      EXPECT_NE(text.find("the test says so"), std::string::npos) << text;
    }
    together.arrive_and_wait();
  });
}

TEST(Nccl, AllocatesMemoryWhileNcclLaunches) {
  const ScopedVariable slow("BACKPLANE_DOUBLE_SLOW", "300");
  on_devices(2, [](ProcessGroup& group, Device device) {
    Memory<float> memory = filled<float>(group, device, 4, 1);
    group.barrier();
    CallOptions async;
    async.async_op = true;
    Work work = group.all_reduce(span(memory, device), ReduceOp::kSum, async);
    filled<float>(group, device, 8, 1);  // freed at once
    work.wait();
    EXPECT_TRUE(all_are<float>(memory, 2));
  });
}

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
    compat::all_gather_multigpu({buffers.begin(), buffers.end()}, outs, group);
    for (const Numbers& each : gathered) {
      for (int k = 0; k < 4; ++k) EXPECT_EQ(each.get()[static_cast<uint64_t>(k) * 100], k);  // rank * 2 + i
    }
    compat::all_reduce_multigpu(buffers, ReduceOp::kMax, group);
    EXPECT_TRUE(data[0].get()[99] == 3 && data[1].get()[99] == 3);
    data[1].get()[0] = 10 * (rank + 1);
    compat::broadcast_multigpu(buffers, 1, group, 1);
    EXPECT_EQ(*data[0], 20);
    EXPECT_EQ(*data[1], 20);
    compat::reduce_multigpu(buffers, 0, ReduceOp::kSum, group, 1);
    EXPECT_EQ(*data[1], rank == 0 ? 80 : 20);
    EXPECT_EQ(*data[0], 20);
    // Other devices make another group. Here the ranks pass different numbers of them.
    std::vector<Buffer> others(rank == 0 ? 1 : 3, buffers[1]);
    EXPECT_EQ(failure_of([&] { compat::all_reduce_multigpu(others, ReduceOp::kSum, group); }), Status::kInvalid);
    group.barrier();
  });
  compat::clear_group_cache();
}

TEST(Nccl, KeepsGroupsOfSeveralDevicesUntilTheyAreCleared) {
  const ScopedVariable library("BACKPLANE_NCCL_LIBRARY", kDouble);
  ProcessGroup group = ProcessGroup::create(on_device("cpu:gloo,cuda:nccl", Store::inproc(), 0, 1, 2));
  const Numbers first = numbers_on(Device::cuda(0), 4, 1);
  const Numbers second = numbers_on(Device::cuda(1), 4, 2);
  const std::vector<Buffer> buffers = {Buffer(first.get(), 4, DType::kI32, Device::cuda(0)),
                                       Buffer(second.get(), 4, DType::kI32, Device::cuda(1))};
  const auto started = [&group, &buffers] {
    LogLines lines;
    compat::all_reduce_multigpu(buffers, ReduceOp::kMax, group);
    return contains(lines.text(), "nccl: NCCL 2");
  };
  EXPECT_TRUE(started());
  EXPECT_FALSE(started());
  compat::clear_group_cache();
  EXPECT_TRUE(started());
  compat::clear_group_cache();
}
#endif

}  // namespace
}  // namespace backplane::test
