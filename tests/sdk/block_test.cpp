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

TEST(BlockTest, OnlyWhatAPoolKeepsBeginsWithAPage) {
  EXPECT_EQ(Block(BlockPool::kSmallest - 1).size(), BlockPool::kSmallest - 1);
  const Block large(BlockPool::kSmallest + 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % 4096, 0U);
  EXPECT_EQ(large.size() % 4096, 0U);
}

TEST(BlockPoolTest, WhatCameBackIsTakenAgain) {
  const auto pool = std::make_shared<BlockPool>(8 * kMiB);
  std::byte* const first = pool->take(kMiB).get();
  EXPECT_EQ(pool->kept_bytes(), kMiB);
  EXPECT_EQ(pool->take(kMiB).get(), first);
  EXPECT_EQ(pool->take(kMiB * 7 / 8).get(), first);
  EXPECT_NE(pool->take(kMiB / 2).get(), first);  // it would waste half of it
  const auto one = pool->take(kMiB);
  const auto other = pool->take(kMiB);
  EXPECT_EQ(one.get(), first);
  EXPECT_NE(other.get(), first);
  std::memset(other.get(), 1, kMiB);
}

TEST(BlockPoolTest, WhatIsKeptHasALimit) {
  const auto pool = std::make_shared<BlockPool>(3 * kMiB);
  std::vector<std::shared_ptr<std::byte>> taken;
  for (int i = 0; i < 5; ++i) taken.push_back(pool->take(kMiB));
  std::byte* const last = taken[4].get();
  taken.clear();
  EXPECT_EQ(pool->kept_bytes(), 3 * kMiB);
  EXPECT_EQ(pool->take(kMiB).get(), last);
  pool->take(BlockPool::kSmallest - 1);
  pool->take(4 * kMiB);
  EXPECT_EQ(pool->kept_bytes(), 3 * kMiB);
  pool->take(3 * kMiB);  // the others make room
  EXPECT_EQ(pool->kept_bytes(), 3 * kMiB);
  const auto none = std::make_shared<BlockPool>(0);
  none->take(kMiB);
  EXPECT_EQ(none->kept_bytes(), 0U);
}

TEST(BlockPoolTest, NothingIsKeptOnceItIsClosed) {
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

TEST(BlockPoolTest, ThreadsShareIt) {
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
