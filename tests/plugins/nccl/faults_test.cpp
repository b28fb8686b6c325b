// SPDX-License-Identifier: Apache-2.0
//
// Each call into CUDA or NCCL fails once, and each allocation of the plugin. Operations in flight then end with an
// error on both ranks, and the group ends in order.
#include <memory>
#include <vector>

#include "allocations.hpp"
#include "support.hpp"

namespace backplane::test {
namespace {

// The buffers of operations. They outlive the group, because the device may still use those of failed operations.
struct Data {
  std::vector<Memory<float>> memory;
  std::vector<float> host = std::vector<float>(100, 1);
  std::vector<float> got = std::vector<float>(100);
};

// Runs operations of all kinds. Throws Error.
void use(ProcessGroup& group, Device device, const TestStream& stream, Data& data) {
  const int next = (group.rank() + 1) % group.world_size();
  const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
  data.memory.push_back(filled<float>(group, device, 100, 1));
  data.memory.push_back(filled<float>(group, device, 100 * static_cast<uint64_t>(group.world_size()), 0));
  const Buffer some = span(data.memory[0], device);
  const Buffer all = span(data.memory[1], device);
  Work largest = group.all_reduce(some, ReduceOp::kMax, stream.async());  // the first of its shape
  group.all_reduce(some);
  group.all_reduce_premul_sum(some, some, 0.5F);
  group.all_reduce(data.host);
  group.all_to_all(some, some);
  group.gather(some, group.rank() == 0 ? all : Buffer(), 0);
  Work sum = group.all_reduce(some, ReduceOp::kSum, stream.async());
  sum.wait_on_stream(nullptr);
  Work received = group.recv(data.got, previous, 1, async());
  Work taken = group.recv(some, previous, 2, stream.async());
  Work sent = group.send(Buffer(data.memory[1].data(), 100, dtype_of<float>, device), next, 1, stream.async());
  Work staged = group.send(data.host, next, 2, async());
  taken.wait_on_stream(stream.get());
  for (Work* const work : {&largest, &sum, &received, &taken, &sent, &staged}) work->wait();
  group.barrier();
}

// Call `number` of rank 0 fails; 0: none. Returns how many calls it has made.
uint64_t use_with_a_fault(int world_size, uint64_t number) {
  const Store store = Store::inproc();
  std::vector<std::unique_ptr<TestStream>> streams;
  for (int rank = 0; rank < world_size; ++rank) streams.push_back(std::make_unique<TestStream>(Device::cuda(rank)));
  double_fail(0, number);
  on_ranks(world_size, [&](int rank) {
    Data data;
    try {
      GroupOptions options = on_device(nccl("stage=true"), store, rank, world_size, rank);
      ProcessGroup group = ProcessGroup::create(options);
      use(group, Device::cuda(rank), *streams[static_cast<size_t>(rank)], data);
      group.barrier();
    } catch (const Error& e) {
      EXPECT_NE(number, 0) << e.what();
      EXPECT_STRNE(e.what(), "");
    }
  });
  const uint64_t calls = double_calls();
  double_fail(-1, 0);
  return calls;
}

// Returns the number of allocations of rank 0, which calls `begin` and `end` to count them.
template <typename Begin, typename End>
uint64_t use_and_count(int world_size, bool may_fail, const Begin& begin, const End& end) {
  const Store store = Store::inproc();
  std::vector<std::unique_ptr<TestStream>> streams;
  for (int rank = 0; rank < world_size; ++rank) streams.push_back(std::make_unique<TestStream>(Device::cuda(rank)));
  uint64_t made = 0;
  on_ranks(world_size, [&](int rank) {
    const ProgramThread of_program;
    Data data;
    ProcessGroup group = ProcessGroup::create(on_device(nccl("stage=true"), store, rank, world_size, rank));
    if (rank == 0) begin();
    try {
      use(group, Device::cuda(rank), *streams[static_cast<size_t>(rank)], data);
      group.barrier();
    } catch (const Error& e) {
      EXPECT_TRUE(may_fail) << e.what();
      EXPECT_STRNE(e.what(), "");
    }
    if (rank == 0) made = end();
  });
  return made;
}

uint64_t use_without_memory(int world_size, uint64_t number) {
  return use_and_count(
      world_size, number != 0, [number] { fail_allocation(number); }, end_allocations);
}

// The same for the threads of the group.
uint64_t use_without_memory_on_threads(int world_size, uint64_t number, uint64_t count) {
  return use_and_count(
      world_size, count != 0, [number, count] { fail_thread_allocations(number, count); }, end_thread_allocations);
}

// The threads poll, so the number of allocations varies.
TEST(NcclFaults, FailTheGroupAtEachAllocationOfItsThreads) {
  const ScopedVariable late("BACKPLANE_DOUBLE_LATE", "500");
  for (const int world_size : {1, 2}) {
    const uint64_t made = use_without_memory_on_threads(world_size, 1, 0);
    ASSERT_GT(made, 0);
    int failed = 0;
    for (uint64_t number = 1; number <= made; number += world_size == 1 ? 1 : 1 + number / 3) {
      SCOPED_TRACE(number);
      failed += use_without_memory_on_threads(world_size, number, number % 4 + 1) >= number ? 1 : 0;
    }
    EXPECT_GT(failed, 0);
  }
}

TEST(NcclFaults, FailTheGroupAtEachAllocation) {
  const ScopedVariable late("BACKPLANE_DOUBLE_LATE",
                            "500");  // the launch outlasts submit, so that the launching thread is used
  for (const int world_size : {1, 2}) {
    const uint64_t made = use_without_memory(world_size, 0);
    ASSERT_GT(made, 50);
    int failed = 0;
    for (uint64_t number = 1; number <= made; number += world_size == 1 ? 1 : 1 + number) {
      SCOPED_TRACE(number);
      failed += use_without_memory(world_size, number) >= number ? 1 : 0;
    }
    EXPECT_GT(failed, 0);
  }
}

TEST(NcclFaults, FailTheGroupAtEachCall) {
  const uint64_t calls = use_with_a_fault(1, 0);
  ASSERT_GT(calls, 50);
  for (uint64_t number = 1; number <= calls; ++number) {
    SCOPED_TRACE(number);
    use_with_a_fault(1, number);
  }
  use_with_a_fault(1, 0);
}

TEST(NcclFaults, FailTheGroupOfTheOtherRank) {
  const uint64_t calls = use_with_a_fault(2, 0);
  for (uint64_t number = 1; number <= calls; number += 1 + number / 3) {
    SCOPED_TRACE(number);
    use_with_a_fault(2, number);
  }
  use_with_a_fault(2, 0);
}

}  // namespace
}  // namespace backplane::test
