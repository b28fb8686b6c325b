// SPDX-License-Identifier: Apache-2.0
//
// Runs tasks on one thread, at once or at a given time, in the order of their times.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace backplane::tensorpipe {

class TimedExecutor {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;  // must not throw

  TimedExecutor() = default;
  ~TimedExecutor() { stop(); }
  TimedExecutor(const TimedExecutor&) = delete;
  TimedExecutor& operator=(const TimedExecutor&) = delete;

  // Starts the thread. Throws sdk::Failure (BP_RESOURCE).
  void start();
  // Any thread, does not block. Tasks added before start wait for it. Tasks added after stop do not run.
  void add(Task task, Clock::time_point due = Clock::now());
  // Waits for the running task and discards the others. Must not be called in a task.
  void stop();

 private:
  void run();

  std::mutex mutex_;  // guards the fields below, but for thread_
  std::condition_variable changed_;
  std::multimap<Clock::time_point, Task> tasks_;  // by the time when they are due
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace backplane::tensorpipe
