// SPDX-License-Identifier: Apache-2.0
#include "rpc/pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "support/eventually.hpp"
#include "support/must_end.hpp"

namespace backplane::core::rpc {
namespace {

// Each task waits for one that it adds itself: with one thread, only growth gets it done.
TEST(RpcPoolTest, GrowsWhileTasksWait) {
  const auto shared = std::make_shared<Pool>(1);
  Pool& pool = *shared;
  constexpr int kDepth = 64;
  Pool::Counts deepest;
  const auto end = std::chrono::steady_clock::now() + test::kPatience;
  std::atomic<int> waited_in_vain = 0;
  std::function<void(int)> dive = [&](int depth) {
    if (depth == 0) {
      deepest = pool.counts();
      return;
    }
    const auto done = std::make_shared<std::promise<void>>();
    pool.add([&dive, done, depth] {
      dive(depth - 1);
      done->set_value();
    });
    Pool::wait_begin();
    if (done->get_future().wait_until(end) != std::future_status::ready) ++waited_in_vain;
    Pool::wait_end();
  };
  const auto dive_deep = [&pool, &dive] {
    std::promise<void> all;
    pool.add([&dive, &all] {
      dive(kDepth);
      all.set_value();
    });
    all.get_future().wait();
  };
  test::must_end("a pool whose tasks wait for others", dive_deep, 2 * test::kPatience);  // each waits for one at most
  EXPECT_TRUE(pool.stop());
  EXPECT_EQ(waited_in_vain, 0) << "tasks waited for others that no thread took";
  EXPECT_EQ(deepest.waiting, static_cast<size_t>(kDepth));
  EXPECT_EQ(deepest.threads, static_cast<size_t>(kDepth) + 1);
}

// A thread that has waited for long sleeps at once, next time, and one whose waits are brief looks first.
TEST(RpcPoolTest, WhoWaitsBrieflyLooksBeforeItSleeps) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int looks = 0;
  const auto third_time = [&looks] { return ++looks == 3; };
  bool seen = false;
  while (!seen && std::chrono::steady_clock::now() < until) {  // what else computes may take the moment away
    looks = 0;
    Pool::wait_begin();
    Pool::wait_end();
    Pool::wait_begin();
    seen = Pool::wait_briefly(third_time);
    Pool::wait_end();
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(looks, 3);
  Pool::wait_begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Pool::wait_end();
  Pool::wait_begin();
  EXPECT_FALSE(Pool::wait_briefly([] { return true; }));
  Pool::wait_end();
}

TEST(RpcPoolTest, StopsWhenAllHasRun) {
  std::atomic<int> ran = 0;
  const auto shared = std::make_shared<Pool>(2);
  Pool& pool = *shared;
  for (int i = 0; i < 1000; ++i) pool.add([&ran] { ++ran; });
  pool.stop();
  EXPECT_EQ(ran, 1000);
  EXPECT_FALSE(pool.add([] {}));
  EXPECT_EQ(pool.counts().threads, 0U);
}

// A task waits for one that is queued behind it, while the pool is being stopped.
TEST(RpcPoolTest, GrowsWhileItStops) {
  const auto shared = std::make_shared<Pool>(1);
  Pool& pool = *shared;
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

// A task that does not end is left alone, with what is behind it, and keeps the pool.
TEST(RpcPoolTest, LeavesAloneWhatDoesNotEnd) {
  auto pool = std::make_shared<Pool>(1);
  const std::weak_ptr<Pool> seen = pool;
  std::promise<void> running;
  std::promise<void> let_go;
  std::promise<void> behind;
  pool->add([&running, &let_go] {
    running.set_value();
    let_go.get_future().wait();
  });
  pool->add([&behind] { behind.set_value(); });
  running.get_future().wait();
  EXPECT_FALSE(pool->stop(Deadline::after(1'000'000)));
  EXPECT_FALSE(pool->stop(Deadline::after(0)));
  pool.reset();
  EXPECT_FALSE(seen.expired());
  let_go.set_value();
  EXPECT_TRUE(test::in_time(behind.get_future())) << "what was behind it does not run";
  EXPECT_TRUE(test::eventually([&seen] { return seen.expired(); })) << "the pool stays though nothing runs";
}

}  // namespace
}  // namespace backplane::core::rpc
