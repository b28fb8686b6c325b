// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/executor.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "support/eventually.hpp"
#include "support/must_end.hpp"

namespace backplane::base {
namespace {

// Each task waits for one that it adds itself: with one thread, only compensation gets it done.
TEST(ExecutorTest, StartsThreadsForBlockedOnes) {
  Executor executor(1);
  constexpr int kDepth = 64;
  Executor::Counts deepest;
  const auto end = std::chrono::steady_clock::now() + test::kWaitLimit;
  std::atomic<int> waited_in_vain = 0;
  std::function<void(int)> dive = [&](int depth) {
    if (depth == 0) {
      deepest = executor.counts();
      return;
    }
    const auto done = std::make_shared<std::promise<void>>();
    executor.add([&dive, done, depth] {
      dive(depth - 1);
      done->set_value();
    });
    const Executor::BlockingScope blocking;
    if (done->get_future().wait_until(end) != std::future_status::ready) ++waited_in_vain;
  };
  const auto dive_deep = [&executor, &dive] {
    std::promise<void> all;
    executor.add([&dive, &all] {
      dive(kDepth);
      all.set_value();
    });
    all.get_future().wait();
  };
  test::must_end("an executor whose tasks wait for others", dive_deep, 2 * test::kWaitLimit);
  EXPECT_TRUE(executor.stop());
  EXPECT_EQ(waited_in_vain, 0) << "tasks waited for others that no thread took";
  EXPECT_EQ(deepest.blocked, static_cast<size_t>(kDepth));
  EXPECT_EQ(deepest.threads, static_cast<size_t>(kDepth) + 1);
}

TEST(ExecutorTest, OneThreadRunsTasksInOrder) {
  Executor executor(1);
  std::vector<int> order;  // without a lock: the thread alone writes
  for (int i = 0; i < 1000; ++i) {
    executor.add([&order, i] { order.push_back(i); });
    if (i % 100 == 0) {
      EXPECT_TRUE(test::eventually([&executor] { return executor.counts().idle == 1; }));
    }
  }
  executor.stop();
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(ExecutorTest, UnlimitedStartsAThreadForEachTask) {
  constexpr size_t kTasks = 50;
  Executor executor(Executor::kUnlimited);
  std::latch all(kTasks);
  const auto add_all = [&executor, &all] {
    for (size_t i = 0; i < kTasks; ++i) executor.add([&all] { all.arrive_and_wait(); });
    all.wait();
  };
  test::must_end("an unlimited executor whose tasks wait for each other", add_all);
  EXPECT_EQ(executor.counts().threads, kTasks);
  EXPECT_TRUE(test::eventually([&executor] { return executor.counts().idle == kTasks; }));
  executor.add([] {});
  EXPECT_EQ(executor.counts().threads, kTasks) << "an idle thread was not used";
}

TEST(ExecutorTest, ThreadsBlockSignalsAndStartLazily) {
  Executor executor(4);
  EXPECT_EQ(executor.counts().threads, 0U);
  std::promise<bool> blocked;
  executor.add([&executor, &blocked] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked.set_value(sigismember(&mask, SIGTERM) == 1 && executor.inside());
  });
  EXPECT_TRUE(blocked.get_future().get());
  EXPECT_FALSE(executor.inside());
  EXPECT_EQ(executor.counts().threads, 1U);
}

TEST(ExecutorTest, StopRunsWhatIsQueued) {
  std::atomic<int> ran = 0;
  Executor executor(2);
  for (int i = 0; i < 1000; ++i) executor.add([&ran] { ++ran; });
  executor.stop();
  EXPECT_EQ(ran, 1000);
  EXPECT_FALSE(executor.add([] {}));
  EXPECT_EQ(executor.counts().threads, 0U);
}

TEST(ExecutorTest, StopDropsWhatIsQueuedIfAskedTo) {
  const auto captured = std::make_shared<int>();
  std::atomic<bool> begun = false;
  std::atomic<bool> may_end = false;
  Executor executor(1, Executor::AtStop::kDropQueued);
  executor.add([&begun, &may_end, captured] {
    begun = true;
    begun.notify_all();
    may_end.wait(false);
  });
  begun.wait(false);
  for (int i = 0; i < 3; ++i) executor.add([captured] { ADD_FAILURE() << "it ran"; });
  std::thread stopping([&executor] { executor.stop(); });
  // This one, and the task that runs.
  EXPECT_TRUE(test::eventually([&captured] { return captured.use_count() == 2; })) << "a queued task was kept";
  may_end = true;
  may_end.notify_all();
  stopping.join();
  EXPECT_FALSE(executor.add([captured] { ADD_FAILURE() << "it ran"; }));
  EXPECT_EQ(captured.use_count(), 1);
}

// A task waits for one that is queued behind it, while the executor is being stopped.
TEST(ExecutorTest, StartsThreadsWhileItStops) {
  Executor executor(1);
  std::promise<void> running;
  std::promise<void> behind;
  executor.add([&] {
    executor.add([&behind] { behind.set_value(); });
    running.set_value();
    while (executor.add([] {})) std::this_thread::yield();
    const Executor::BlockingScope blocking;
    EXPECT_EQ(behind.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  });
  running.get_future().wait();
  executor.stop();
}

TEST(ExecutorTest, DetachesATaskThatDoesNotReturn) {
  auto executor = std::make_unique<Executor>(1);
  auto captured = std::make_shared<int>();
  const std::weak_ptr<int> seen = captured;
  std::promise<void> running;
  std::promise<void> let_go;
  std::promise<void> behind;
  executor->add([&running, &let_go, captured] {
    running.set_value();
    let_go.get_future().wait();
  });
  executor->add([&behind] { behind.set_value(); });
  captured.reset();
  running.get_future().wait();
  EXPECT_FALSE(executor->stop(Deadline::after(1'000'000)));
  EXPECT_FALSE(executor->stop(Deadline::after(0)));
  executor.reset();
  EXPECT_FALSE(seen.expired());
  let_go.set_value();
  EXPECT_TRUE(test::in_time(behind.get_future())) << "the task queued behind it does not run";
  EXPECT_TRUE(test::eventually([&seen] { return seen.expired(); })) << "the task is kept though it has returned";
}

TEST(ExecutorTest, MayBeDestroyedByATask) {
  auto executor = std::make_unique<Executor>(1);
  Executor& alive = *executor;
  std::promise<void> done;
  auto end = done.get_future();
  alive.add([owned = std::make_shared<std::unique_ptr<Executor>>(std::move(executor)), &done] {
    owned->reset();
    done.set_value();
  });
  EXPECT_TRUE(test::in_time(end)) << "an executor waits for the task that destroys it";
}

}  // namespace
}  // namespace backplane::base
