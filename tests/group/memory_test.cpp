// SPDX-License-Identifier: Apache-2.0
//
// Buffers in memory allocated by a group: the same results as in other memory, on any subset of ranks.
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "support/groups.hpp"
#include "support/reference.hpp"

namespace backplane::test {
namespace {

constexpr uint64_t kMemoryCounts[] = {1, 100, 5'000, 40'000, 300'000};

// Elements of one rank, in memory of the group or in ordinary memory, between guard elements that must not change.
class Place {
 public:
  Place(ProcessGroup& group, uint64_t count, bool allocated) : plain_(allocated ? 0 : count + 2 * kEdge, -7) {
    if (allocated) own_ = group.allocate<int32_t>(count + 2 * kEdge);
    all_ = allocated ? std::span<int32_t>(own_.data(), own_.size()) : std::span<int32_t>(plain_);
    std::fill(all_.begin(), all_.end(), -7);
  }
  std::span<int32_t> part() const { return all_.subspan(kEdge, all_.size() - 2 * kEdge); }
  bool edges_hold() const {
    const auto holds = [](int32_t value) { return value == -7; };
    return std::all_of(all_.begin(), all_.begin() + kEdge, holds) && std::all_of(all_.end() - kEdge, all_.end(), holds);
  }

 private:
  static constexpr ptrdiff_t kEdge = 5;  // elements; unaligned to cache lines
  Memory<int32_t> own_;
  std::vector<int32_t> plain_;
  std::span<int32_t> all_;
};

void fill(std::span<int32_t> part, int rank) { write_data_of(part.data(), rank, part.size()); }
BACKPLANE_TEST_OPTIMIZED uint64_t equal_ones(const int32_t* part, const int32_t* expected, uint64_t count) {
  uint64_t i = 0;
  while (i < count && part[i] == expected[i]) ++i;
  return i;
}
void expect_all(std::span<const int32_t> part, const std::vector<int32_t>& expected) {
  ASSERT_EQ(part.size(), expected.size());
  EXPECT_EQ(equal_ones(part.data(), expected.data(), part.size()), part.size()) << "is the first wrong one";
}

struct Round {
  ProcessGroup& group;
  const uint64_t count;
  const bool in_allocated;
  const bool out_allocated;
  const int size = group.world_size();
  const uint64_t ranks = static_cast<uint64_t>(size);
  const uint64_t own = static_cast<uint64_t>(group.rank()) * count;

  void all() const {
    all_reduce();
    all_reduce_in_place();
    reduce();
    broadcast();
    all_gather();
    reduce_scatter();
    reduce_scatter_in_place();
  }
  void all_reduce() const {
    const Place in(group, count, in_allocated);
    const Place out(group, count, out_allocated);
    fill(in.part(), group.rank());
    group.all_reduce(in.part(), out.part());
    expect_all(out.part(), sum_of<int32_t>(size, count));
    expect_all(in.part(), data_of<int32_t>(group.rank(), count));
    EXPECT_TRUE(in.edges_hold() && out.edges_hold());
  }
  void all_reduce_in_place() const {
    const Place data(group, count, in_allocated);
    fill(data.part(), group.rank());
    group.all_reduce(data.part());
    expect_all(data.part(), sum_of<int32_t>(size, count));
    EXPECT_TRUE(data.edges_hold());
    fill(data.part(), 0);  // at once: no rank may still read it
    group.all_reduce(data.part(), ReduceOp::kMax);
    expect_all(data.part(), data_of<int32_t>(0, count));
  }
  void reduce() const {
    const Place in(group, count, in_allocated);
    const Place out(group, count, out_allocated);
    fill(in.part(), group.rank());
    group.reduce(in.part(), out.part(), size - 1);
    fill(in.part(), 17);
    if (group.rank() == size - 1) expect_all(out.part(), sum_of<int32_t>(size, count));
  }
  void broadcast() const {
    const Place data(group, count, in_allocated);
    if (group.rank() == size - 1) fill(data.part(), 3);
    group.broadcast(data.part(), size - 1);
    expect_all(data.part(), data_of<int32_t>(3, count));
    EXPECT_TRUE(data.edges_hold());
    fill(data.part(), 17);
  }
  void all_gather() const {
    const Place in(group, count, in_allocated);
    const Place out(group, count * ranks, out_allocated);
    fill(in.part(), group.rank());
    group.all_gather(in.part(), out.part());
    fill(in.part(), 17);
    expect_all(out.part(), blocks_of_all<int32_t>(size, count));
    EXPECT_TRUE(out.edges_hold());
    fill(out.part().subspan(own, count), group.rank());
    group.all_gather(out.part().subspan(own, count), out.part());
    expect_all(out.part(), blocks_of_all<int32_t>(size, count));
  }
  void reduce_scatter() const {
    const Place in(group, count * ranks, in_allocated);
    const Place out(group, count, out_allocated);
    fill(in.part(), group.rank());
    group.reduce_scatter(in.part(), out.part());
    fill(in.part(), 17);
    expect_all(out.part(), sum_of<int32_t>(size, count, own));
    EXPECT_TRUE(out.edges_hold());
  }
  void reduce_scatter_in_place() const {
    const Place data(group, count * ranks, in_allocated);
    fill(data.part(), group.rank());
    group.reduce_scatter(data.part(), data.part().subspan(own, count));
    expect_all(data.part().subspan(own, count), sum_of<int32_t>(size, count, own));
    EXPECT_TRUE(data.edges_hold());
  }
};

using MemoryTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, MemoryTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 3, 5)),
                         backend_test_name);

// Results: over shm, which allocates memory in groups of more than one rank, and over one backend that does not. The
// other backends use ordinary memory, as in operations_test.cpp.
std::vector<std::string> backends_with_and_without_memory() {
  std::vector<std::string> names = built_backends();
  std::erase_if(names, [](const std::string& name) { return name != "inproc" && name != "shm"; });
  return names;
}
using OwnMemoryTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, OwnMemoryTest,
                         testing::Combine(testing::ValuesIn(backends_with_and_without_memory()),
                                          testing::Values(2, 3, 5)),
                         backend_test_name);

TEST_P(OwnMemoryTest, AllRanksAllocateTheirBuffers) {
  in_group([](ProcessGroup& group) {
    for (const uint64_t count : kMemoryCounts) Round{group, count, true, true}.all();
  });
}

TEST_P(OwnMemoryTest, SomeRanksAllocateSomeBuffers) {
  in_group([](ProcessGroup& group) {
    for (int mask = 0; mask < 8; ++mask) {
      const int mine = mask ^ group.rank();
      for (const uint64_t count : {UINT64_C(3'000), UINT64_C(50'000)}) {
        Round{group, count, (mine & 1) != 0, (mine & 2) != 0}.all();
      }
    }
  });
}

TEST_P(OwnMemoryTest, MessagesAndVariants) {
  in_group([](ProcessGroup& group) {
    const auto ranks = static_cast<uint64_t>(group.world_size());
    Memory<int32_t> in = group.allocate<int32_t>(20'000);
    Memory<int32_t> out = group.allocate<int32_t>(20'000 * ranks);
    fill({in.data(), in.size()}, group.rank());
    const int next = (group.rank() + 1) % group.world_size();
    const int last = (group.rank() + group.world_size() - 1) % group.world_size();
    Work sent = group.isend(in, next);
    group.recv(std::span(out.data(), in.size()), last);
    sent.wait();
    expect_all({out.data(), in.size()}, data_of<int32_t>(last, in.size()));
    Blocks blocks;
    for (uint64_t rank = 0; rank < ranks; ++rank) blocks.counts.push_back(rank % 2 == 0 ? 20'000 : 300);
    const uint64_t mine = blocks.counts[static_cast<size_t>(group.rank())];
    uint64_t all = 0;
    for (const uint64_t count : blocks.counts) all += count;
    group.all_gatherv(std::span(in.data(), mine), std::span(out.data(), all), blocks);
    const int32_t* block = out.data();
    for (uint64_t rank = 0; rank < ranks; block += blocks.counts[rank++]) {
      expect_all({block, blocks.counts[rank]}, data_of<int32_t>(static_cast<int32_t>(rank), blocks.counts[rank]));
    }
  });
}

TEST_P(OwnMemoryTest, AsyncOperationsOnParts) {
  in_group([](ProcessGroup& group) {
    constexpr uint64_t kPart = 30'000;
    Memory<int32_t> data = group.allocate<int32_t>(4 * kPart);
    fill({data.data(), data.size()}, group.rank());
    std::vector<Work> works;
    for (uint64_t i = 0; i < 4; ++i) {
      works.push_back(group.all_reduce(std::span(data.data() + i * kPart, kPart), ReduceOp::kSum, {.async_op = true}));
    }
    for (Work& work : works) work.wait();
    expect_all({data.data(), data.size()}, sum_of<int32_t>(group.world_size(), data.size()));
  });
}

TEST_P(MemoryTest, MayBeAllocatedAndFreedDuringOperations) {
  in_group([](ProcessGroup& group) {
    for (int round = 0; round < 30; ++round) {
      Memory<double> data = group.allocate<double>(10'000 + static_cast<uint64_t>(round * (group.rank() + 1)));
      std::fill(data.begin(), data.end(), 1.0);
      group.all_reduce(std::span(data.data(), 10'000));
      EXPECT_EQ(data[9'999], group.world_size());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data.data()) % 64, 0U);
    }
  });
}

TEST_P(MemoryTest, OutlivesItsGroup) {
  in_group([](ProcessGroup& group) {
    ProcessGroup other = group.split(0);
    Memory<int> data = other.allocate<int>(50'000);
    std::fill(data.begin(), data.end(), 1);
    other.all_reduce(data);
    group.barrier();
    other.destroy();
    EXPECT_EQ(data[49'999], group.world_size());
    data[0] = 3;
    group.all_reduce(data);  // any memory may be used
    EXPECT_EQ(data[0], 3 * group.world_size());
    EXPECT_EQ(failure_of([&other] { other.allocate<int>(1); }), Status::kInvalid);
  });
}

TEST_P(MemoryTest, SubgroupsUseIt) {
  in_group([](ProcessGroup& group) {
    constexpr int kSize = 50'000;
    Memory<int> data = group.allocate<int>(kSize);
    ProcessGroup reversed = group.split(0, -group.rank());
    ProcessGroup half = reversed.split(group.rank() % 2);
    Memory<int> of_half = half.allocate<int>(kSize);
    for (int round = 1; round <= 3; ++round) {
      std::fill(data.begin(), data.end(), round * group.rank());
      reversed.all_reduce(data);
      EXPECT_EQ(std::count(data.begin(), data.end(), round * group.world_size() * (group.world_size() - 1) / 2), kSize);
      std::fill(data.begin(), data.end(), round);
      half.all_reduce(data, of_half);
      EXPECT_EQ(std::count(of_half.begin(), of_half.end(), round * half.world_size()), kSize);
      group.broadcast(of_half, 0);
      EXPECT_EQ(std::count(of_half.begin(), of_half.end(), round * ((group.world_size() + 1) / 2)), kSize);
    }
  });
}

TEST_P(MemoryTest, ZeroBytesAndTooManyBytes) {
  in_group([](ProcessGroup& group) {
    const Memory<float> none = group.allocate<float>(0);
    EXPECT_EQ(none.size(), 0U);
    EXPECT_FALSE(none.native());
    EXPECT_EQ(failure_of([&group] { group.allocate<double>(UINT64_C(1) << 50); }), Status::kResource);
    EXPECT_EQ(failure_of([&group] { group.allocate<double>(~UINT64_C(0) / 2); }), Status::kResource);
    Memory<float> first = group.allocate<float>(10);
    first[3] = 4;
    Memory<float> second = std::move(first);
    EXPECT_EQ(first.size(), 0U);
    EXPECT_EQ(second[3], 4);
  });
}

TEST_P(MemoryTest, OnlyShmAllocatesNatively) {
  in_group([this](ProcessGroup& group) {
    EXPECT_EQ(group.allocate<float>(10).native(), backend() == "shm" && group.world_size() > 1);
    bp_memory* memory = nullptr;
    bp_error err;
    bp_error_init(&err);
    EXPECT_EQ(bp_group_allocate(group.get(), 8, BP_MEMORY_COUNT, 0, &memory, &err), BP_INVALID);
    EXPECT_EQ(bp_group_allocate(group.get(), 8, BP_CUDA, 0, &memory, &err), BP_UNSUPPORTED);
    EXPECT_EQ(bp_group_allocate(group.get(), 8, BP_HOST, 0, nullptr, &err), BP_INVALID);
    bp_memory_release(nullptr);
  });
}

}  // namespace
}  // namespace backplane::test
