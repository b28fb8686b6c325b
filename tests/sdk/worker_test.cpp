// SPDX-License-Identifier: Apache-2.0
#include "backplane/sdk/worker.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "sdk/failure_of.hpp"

namespace backplane::sdk {
namespace {

constexpr int64_t kLong = 60'000'000'000;  // nanoseconds; reached only on failure

int32_t outcome(Work& work) {
  try {
    return work.wait(kLong) ? BP_OK : BP_AGAIN;
  } catch (const Failure& failure) {
    return failure.status();
  }
}

// Opened once, for all waiting threads. A wait of more than a minute fails the test.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(1), [this] { return is_open_; })) << "it stays closed";
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

// A task that blocks like a library until it is stopped. Sets *is_over (may be null) before it ends.
auto blocking(Gate& started, std::atomic<bool>* is_over = nullptr) {
  return [&started, is_over](const std::stop_token& stop) {
    Gate interrupted;
    const std::stop_callback interrupt(stop, [&interrupted] { interrupted.open(); });
    started.open();
    interrupted.wait();
    if (is_over != nullptr) *is_over = true;
    throw Failure(BP_INTERNAL, "the library was interrupted");
  };
}

TEST(WorkerTest, TasksRunInOrderAndReportTheirOutcome) {
  Workers workers(1);
  std::vector<int> order;
  auto one = workers.submit([&order] { order.push_back(1); });
  auto two = workers.submit([&order] {
    order.push_back(2);
    throw Failure(BP_RESOURCE, "no more");
  });
  EXPECT_EQ(outcome(*two), BP_RESOURCE);
  EXPECT_EQ(outcome(*two), BP_RESOURCE);
  EXPECT_EQ(outcome(*one), BP_OK);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(WorkerTest, ATaskThatHasNotStartedIsCancelledAtOnce) {
  Workers workers(1);
  Gate started, go_on;
  std::atomic<bool> has_run = false;
  auto running = workers.submit([&started, &go_on] {
    started.open();
    go_on.wait();
  });
  auto waiting = workers.submit([&has_run] { has_run = true; });
  started.wait();
  waiting->cancel();
  EXPECT_EQ(outcome(*waiting), BP_CANCELLED);
  go_on.open();
  EXPECT_EQ(outcome(*running), BP_OK);
  EXPECT_FALSE(has_run);
}

TEST(WorkerTest, ARunningTaskIsStopped) {
  Workers workers(1);
  Gate started;
  auto work = workers.submit(blocking(started));
  started.wait();
  work->cancel();
  EXPECT_EQ(outcome(*work), BP_CANCELLED);  // not the library's error
  auto next = workers.submit([] {});
  EXPECT_EQ(outcome(*next), BP_OK);
}

TEST(WorkerTest, AStoppedTaskThatCompletesIsDone) {
  Workers workers(1);
  Gate started, told;
  auto work = workers.submit([&started, &told](const std::stop_token&) {
    started.open();
    told.wait();
  });
  started.wait();
  work->cancel();
  told.open();
  EXPECT_EQ(outcome(*work), BP_OK);
}

TEST(WorkerTest, AbortEndsRunningAndWaitingTasksWithItsReason) {
  Workers workers(1);
  Gate started;
  auto running = workers.submit(blocking(started));
  auto waiting = workers.submit([] {});
  started.wait();
  workers.abort(Failure(BP_PEER_LOST, "rank 3 died", 3));
  EXPECT_EQ(outcome(*running), BP_PEER_LOST);
  EXPECT_EQ(outcome(*waiting), BP_PEER_LOST);
  const Failure refusal = failure_of([&workers] { workers.submit([] {}); });
  EXPECT_EQ(refusal.status(), BP_PEER_LOST);
  EXPECT_STREQ(refusal.what(), "rank 3 died");
}

TEST(WorkerTest, DestructionStopsRunningTasks) {
  Gate started, started_too;
  std::atomic<bool> is_over = false, is_over_too = false, has_run = false;
  {
    Workers workers(2);
    auto one = workers.submit(blocking(started, &is_over));
    auto other = workers.submit(blocking(started_too, &is_over_too));
    auto waiting = workers.submit([&has_run] { has_run = true; });
    started.wait();
    started_too.wait();
  }
  EXPECT_TRUE(is_over && is_over_too) << "a task outlived its Workers";
  EXPECT_FALSE(has_run);
}

TEST(WorkerTest, ThreadsTakeNoSignals) {
  Workers workers(1);
  sigset_t blocked;
  auto work = workers.submit([&blocked] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); });
  EXPECT_EQ(outcome(*work), BP_OK);
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 1);
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  EXPECT_EQ(sigismember(&mine, SIGTERM), 0);
}

}  // namespace
}  // namespace backplane::sdk
