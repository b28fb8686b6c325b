// SPDX-License-Identifier: Apache-2.0
#include "backplane/sdk/block.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace backplane::sdk {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t past(const Block& block, uint64_t unit) { return reinterpret_cast<uintptr_t>(block.data()) % unit; }

TEST(BlockTest, BeginsWithAPageIfAPoolKeepsItAndWithAHugeOneFromOneMiBOn) {
  EXPECT_EQ(Block(0).size(), 0U);
  EXPECT_EQ(Block(BlockPool::kSmallest - 1).size(), BlockPool::kSmallest - 1);
  const Block large(BlockPool::kSmallest + 1);
  EXPECT_EQ(past(large, 4096), 0U);
  EXPECT_EQ(large.size(), BlockPool::kSmallest + 4096);
  EXPECT_EQ(Block(kMiB - 1).size(), kMiB);
  const Block huge(kMiB);
  EXPECT_EQ(past(huge, 2 * kMiB), 0U);
  EXPECT_EQ(huge.size(), 2 * kMiB);
  EXPECT_EQ(Block(2 * kMiB).size(), 2 * kMiB);
  EXPECT_EQ(Block(2 * kMiB + 1).size(), 4 * kMiB);
}

TEST(BlockPoolTest, ReturnedBlocksAreReused) {
  const auto pool = std::make_shared<BlockPool>(16 * kMiB);
  std::byte* const first = pool->take(8 * kMiB).get();
  EXPECT_EQ(pool->kept_bytes(), 8 * kMiB);
  EXPECT_EQ(pool->take(8 * kMiB).get(), first);
  EXPECT_EQ(pool->take(6 * kMiB).get(), first);
  EXPECT_NE(pool->take(4 * kMiB).get(), first);  // half of it would be wasted
  const auto one = pool->take(8 * kMiB);
  const auto other = pool->take(8 * kMiB);
  EXPECT_EQ(one.get(), first);
  EXPECT_NE(other.get(), first);
  std::memset(other.get(), 1, 8 * kMiB);
}

TEST(BlockPoolTest, RoundedBlocksAreReusedForTheSameSize) {
  const auto pool = std::make_shared<BlockPool>(16 * kMiB);
  for (const uint64_t bytes : {BlockPool::kSmallest + 1, kMiB - 1, kMiB, 2 * kMiB + 1}) {
    std::byte* const first = pool->take(bytes).get();
    EXPECT_EQ(pool->take(bytes).get(), first) << bytes;
  }
}

TEST(BlockPoolTest, KeptMemoryIsBounded) {
  const auto pool = std::make_shared<BlockPool>(6 * kMiB);
  std::vector<std::shared_ptr<std::byte>> taken;
  for (int i = 0; i < 5; ++i) taken.push_back(pool->take(2 * kMiB));
  std::byte* const last = taken[4].get();
  taken.clear();
  EXPECT_EQ(pool->kept_bytes(), 6 * kMiB);
  EXPECT_EQ(pool->take(2 * kMiB).get(), last);
  pool->take(BlockPool::kSmallest - 1);
  pool->take(8 * kMiB);
  EXPECT_EQ(pool->kept_bytes(), 6 * kMiB);
  pool->take(6 * kMiB);  // evicts the others
  EXPECT_EQ(pool->kept_bytes(), 6 * kMiB);
  const auto none = std::make_shared<BlockPool>(0);
  none->take(kMiB);
  EXPECT_EQ(none->kept_bytes(), 0U);
}

TEST(BlockPoolTest, AClosedPoolKeepsNothing) {
  auto pool = std::make_shared<BlockPool>(8 * kMiB);
  const auto late = pool->take(kMiB);
  pool->take(2 * kMiB);
  pool->close();
  EXPECT_EQ(pool->kept_bytes(), 0U);
  pool->take(kMiB);
  EXPECT_EQ(pool->kept_bytes(), 0U);
  pool.reset();
  std::memset(late.get(), 1, kMiB);
}

TEST(BlockPoolTest, ThreadsShareAPool) {
  const auto pool = std::make_shared<BlockPool>(2 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (uint64_t i = 0; i < 200; ++i) {
        const uint64_t bytes = kMiB / 4 + i * 1000;
        const auto block = pool->take(bytes);
        std::memset(block.get(), t, bytes);
        EXPECT_EQ(block.get()[bytes / 2], std::byte(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(pool->kept_bytes(), 2 * kMiB);
}

}  // namespace
}  // namespace backplane::sdk
