// SPDX-License-Identifier: Apache-2.0
#include "backplane/sdk/poller.hpp"

#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "support/must_end.hpp"

namespace backplane::sdk {
namespace {

// A counter that tests wait for.
class Counter {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  // Waits at most a minute. Returns false after that.
  bool reaches(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [this, count] { return count_ >= count; });
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

const auto kUnbroken = [](const Failure& why) { ADD_FAILURE() << why.what(); };

TEST(PollerTest, EachWakeIsFollowedByACall) {
  std::atomic<int> asked = 0, seen = 0;
  Counter calls;
  Poller poller(
      [&asked, &seen, &calls](Poller::Sleep& sleep) {
        seen = asked.load();
        calls.add();
        sleep.until_woken();
        return false;
      },
      kUnbroken);
  for (int i = 1; i <= 1000; ++i) {
    asked = i;
    const int before = calls.count();
    poller.wake();
    while (seen.load() != i) ASSERT_TRUE(calls.reaches(before + 1) || seen.load() == i);
  }
}

TEST(PollerTest, BusyIsCalledAgainAtOnce) {
  Counter calls;
  std::atomic<int> left = 100;
  Poller poller(
      [&left, &calls](Poller::Sleep& sleep) {
        calls.add();
        sleep.until_woken();
        return left.fetch_sub(1) > 1;
      },
      kUnbroken);
  EXPECT_TRUE(calls.reaches(100));
}

TEST(PollerTest, ADescriptorEndsTheSleep) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  Counter bytes;
  {
    Poller poller(
        [&bytes, &ends](Poller::Sleep& sleep) {
          char byte = 0;
          if (read(ends[0], &byte, 1) == 1) {
            bytes.add();
            return true;
          }
          sleep.watch(ends[0], POLLIN);
          return false;
        },
        kUnbroken);
    for (int i = 1; i <= 20; ++i) {
      ASSERT_EQ(write(ends[1], "x", 1), 1);
      ASSERT_TRUE(bytes.reaches(i));
    }
  }
  close(ends[0]);
  close(ends[1]);
}

TEST(PollerTest, ALibraryWithoutADescriptorIsPolledAndPaused) {
  constexpr int kCalls = 20;
  Counter calls;
  const auto start = std::chrono::steady_clock::now();
  Poller poller(
      [&calls](Poller::Sleep&) {
        calls.add();
        return false;
      },
      kUnbroken);
  EXPECT_TRUE(calls.reaches(kCalls));  // without any wake
  int64_t pauses = 0;
  for (int64_t i = 1, pause = Poller::kShortestPause; i < kCalls; ++i) {
    pauses += pause;
    pause = std::min(2 * pause, Poller::kLongestPause);
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::nanoseconds(pauses));
}

TEST(PollerTest, AnIdleGroupSleeps) {
  Counter calls;
  Poller poller(
      [&calls](Poller::Sleep& sleep) {
        calls.add();
        sleep.until_woken();
        return false;
      },
      kUnbroken);
  ASSERT_TRUE(calls.reaches(1));
  poller.wake();
  ASSERT_TRUE(calls.reaches(2));
  poller.stop();
  EXPECT_LE(calls.count(), 4);  // the first and the wake, with one overlapping call each
}

TEST(PollerTest, AFailureIsReportedOnceAndEndsTheCalls) {
  Counter failures, calls;
  Poller poller(
      [&calls](Poller::Sleep&) -> bool {
        calls.add();
        throw std::runtime_error("the library broke");
      },
      [&failures](const Failure& why) {
        EXPECT_EQ(why.status(), BP_INTERNAL);
        EXPECT_STREQ(why.what(), "the library broke");
        failures.add();
      });
  ASSERT_TRUE(failures.reaches(1));
  poller.wake();
  poller.stop();
  EXPECT_EQ(failures.count(), 1);
  EXPECT_EQ(calls.count(), 1);
}

// The first report of the failure runs out of memory.
TEST(PollerTest, AFailureIsReportedUntilThatSucceeds) {
  std::atomic<int> told = 0;
  std::promise<std::string> heard;
  const Poller poller([](Poller::Sleep&) -> bool { throw std::bad_alloc(); },
                      [&told, &heard](const Failure& why) {
                        if (++told < 3) throw std::bad_alloc();
                        heard.set_value(why.what());
                      });
  std::future<std::string> text = heard.get_future();
  ASSERT_EQ(text.wait_for(std::chrono::minutes(1)), std::future_status::ready) << "it is told no more";
  EXPECT_EQ(text.get(), "out of memory");
  EXPECT_EQ(told, 3);
}

TEST(PollerTest, StopMayBeCalledAgain) {
  test::must_end("stop", [] {
    Counter calls;
    Poller poller(
        [&calls](Poller::Sleep&) {
          calls.add();
          return false;
        },
        kUnbroken);
    EXPECT_TRUE(calls.reaches(1));
    std::thread beside([&poller] { poller.stop(); });
    poller.stop();
    beside.join();
    const int before = calls.count();
    poller.wake();
    poller.stop();
    EXPECT_EQ(calls.count(), before) << "progress is called although stop has returned";
  });
}

// Stops at all moments after a wake.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kStops = 5'000;  // one per moment
#else
constexpr int kStops = 20'000;
#endif

TEST(PollerTest, StopAmidAWakeIsNotLost) {
  using Clock = std::chrono::steady_clock;
  const auto stop_all = [] {
    for (int round = 0; round < kStops; ++round) {
      Counter calls;
      Poller poller(
          [&calls](Poller::Sleep& sleep) {
            calls.add();
            sleep.until_woken();
            return false;
          },
          kUnbroken);
      if (round % 2 == 0) {
        ASSERT_TRUE(calls.reaches(1));
      }
      poller.wake();
      const auto moment = Clock::now() + std::chrono::nanoseconds(round * 13 % 60'000);
      while (Clock::now() < moment) {  // too short for a sleep
      }
      poller.stop();
    }
  };
  test::must_end("one of the stops", stop_all, std::chrono::minutes(4));
}

TEST(PollerTest, TheThreadTakesNoSignals) {
  Counter calls;
  std::atomic<bool> is_blocked = false;
  Poller poller(
      [&calls, &is_blocked](Poller::Sleep& sleep) {
        sigset_t blocked;
        pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
        is_blocked = sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGINT) == 1;
        calls.add();
        sleep.until_woken();
        return false;
      },
      kUnbroken);
  ASSERT_TRUE(calls.reaches(1));
  EXPECT_TRUE(is_blocked);
}

}  // namespace
}  // namespace backplane::sdk
