// SPDX-License-Identifier: Apache-2.0
#include "rpc/pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace backplane::core::rpc {
namespace {

// Each task waits for one that it adds itself: with one thread, only growth gets it done.
TEST(RpcPoolTest, GrowsWhileTasksWait) {
  Pool pool(1);
  constexpr int kDepth = 64;
  std::function<void(int)> dive = [&pool, &dive](int depth) {
    if (depth == 0) return;
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
  EXPECT_GE(pool.counts().threads, 1U);
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

}  // namespace
}  // namespace backplane::core::rpc
