// SPDX-License-Identifier: Apache-2.0
#include "rpc/pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace backplane::core::rpc {
namespace {

// Each task waits for one that it adds itself: with one thread, only growth gets it done.
TEST(RpcPoolTest, GrowsWhileTasksWait) {
  Pool pool(1);
  constexpr int kDepth = 64;
  Pool::Counts deepest;
  std::function<void(int)> dive = [&pool, &dive, &deepest](int depth) {
    if (depth == 0) {
      deepest = pool.counts();
      return;
    }
    std::promise<void> done;
    pool.add([&dive, &done, depth] {
      dive(depth - 1);
      done.set_value();
    });
    Pool::wait_begin();
    done.get_future().wait();
    Pool::wait_end();
  };
  std::promise<void> all;
  pool.add([&dive, &all] {
    dive(kDepth);
    all.set_value();
  });
  all.get_future().wait();
  EXPECT_EQ(deepest.waiting, static_cast<size_t>(kDepth));
  EXPECT_EQ(deepest.threads, static_cast<size_t>(kDepth) + 1);
}

TEST(RpcPoolTest, StopsWhenAllHasRun) {
  std::atomic<int> ran = 0;
  Pool pool(2);
  for (int i = 0; i < 1000; ++i) pool.add([&ran] { ++ran; });
  pool.stop();
  EXPECT_EQ(ran, 1000);
  EXPECT_FALSE(pool.add([] {}));
  EXPECT_EQ(pool.counts().threads, 0U);
}

// A task waits for one that is queued behind it, while the pool is being stopped.
TEST(RpcPoolTest, GrowsWhileItStops) {
  Pool pool(1);
  std::promise<void> running;
  std::promise<void> behind;
  pool.add([&] {
    pool.add([&behind] { behind.set_value(); });
    running.set_value();
    while (pool.add([] {})) std::this_thread::yield();
    Pool::wait_begin();
    EXPECT_EQ(behind.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
    Pool::wait_end();
  });
  running.get_future().wait();
  pool.stop();
}

}  // namespace
}  // namespace backplane::core::rpc
