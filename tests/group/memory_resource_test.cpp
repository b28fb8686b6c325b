// SPDX-License-Identifier: Apache-2.0
//
// Containers of the standard library in memory of a group.
#include "backplane/adapters/memory_resource.hpp"

#include <list>
#include <numeric>
#include <string>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

using MemoryResourceTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, MemoryResourceTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 2)),
                         backend_test_name);

// Counts what it is asked for.
class CountingResource final : public std::pmr::memory_resource {
 public:
  size_t allocations = 0;
  size_t bytes = 0;  // allocated now

 private:
  void* do_allocate(size_t size, size_t alignment) override {
    ++allocations;
    bytes += size;
    return std::pmr::new_delete_resource()->allocate(size, alignment);
  }
  void do_deallocate(void* data, size_t size, size_t alignment) override {
    bytes -= size;
    std::pmr::new_delete_resource()->deallocate(data, size, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
};

TEST_P(MemoryResourceTest, VectorsAreBuffers) {
  in_group([](ProcessGroup& group) {
    CountingResource upstream;
    MemoryResource memory(group, MemoryResource::kThreshold, &upstream);
    std::pmr::vector<int> numbers(&memory);
    for (int i = 0; i < 100'000; ++i) numbers.push_back(i + group.rank());  // grows from the upstream's memory on
    EXPECT_GT(upstream.allocations, 0U);
    EXPECT_EQ(upstream.bytes, 0U);
    group.all_reduce(numbers);
    const int ranks = group.world_size();
    for (int i = 0; i < 100'000; ++i) ASSERT_EQ(numbers[static_cast<size_t>(i)], ranks * i + ranks * (ranks - 1) / 2);
    const std::pmr::vector<int> copy(numbers, &memory);
    EXPECT_EQ(copy, numbers);
    numbers = std::pmr::vector<int>(&memory);
    EXPECT_EQ(copy[99'999], ranks * 99'999 + ranks * (ranks - 1) / 2);
  });
}

TEST_P(MemoryResourceTest, SmallAndAlignedMemoryIsTheUpstreams) {
  in_group([](ProcessGroup& group) {
    CountingResource upstream;
    MemoryResource memory(group, 1'000, &upstream);
    const auto bytes_of_upstream = [&memory, &upstream](size_t bytes, size_t alignment) {
      void* const data = memory.allocate(bytes, alignment);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % alignment, 0U);
      const size_t used = upstream.bytes;
      memory.deallocate(data, bytes, alignment);
      EXPECT_EQ(upstream.bytes, 0U);
      return used;
    };
    EXPECT_EQ(bytes_of_upstream(999, 8), 999U);
    EXPECT_EQ(bytes_of_upstream(1'000, 8), 0U);
    EXPECT_EQ(bytes_of_upstream(1'000'000, 64), 0U);
    EXPECT_EQ(bytes_of_upstream(1'000'000, 128), 1'000'000U);
    std::pmr::list<std::pmr::string> words(&memory);
    words.emplace_back(5'000, 'x');
    words.emplace_back("short");
    EXPECT_EQ(words.front().size() + words.back().size(), 5'005U);
  });
}

TEST_P(MemoryResourceTest, MemoryOutlivesTheGroup) {
  in_group([](ProcessGroup& group) {
    ProcessGroup other = group.split(0);
    MemoryResource memory(other);
    std::pmr::vector<int> numbers(50'000, 3, &memory);
    other.all_reduce(numbers);
    group.barrier();
    other.destroy();
    EXPECT_EQ(std::accumulate(numbers.begin(), numbers.end(), 0), 150'000 * group.world_size());
    EXPECT_EQ(failure_of([&numbers] { numbers.reserve(100'000); }), Status::kInvalid);
    EXPECT_EQ(numbers[49'999], 3 * group.world_size());
  });
}

}  // namespace
}  // namespace backplane::test
