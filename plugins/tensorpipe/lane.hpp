// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "backplane/sdk/worker.hpp"

namespace backplane::tensorpipe {

// A thread that does one thing after the other.
class Lane {
 public:
  Lane() : thread_(sdk::start_thread([this] { work(); })) {}
  ~Lane() { stop(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Any thread; does not block. A task throws nothing. Once this is stopped it only goes.
  void post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }
  // The tasks that have not begun go, on this thread; waits for the one that runs.
  void stop() {
    {
      std::deque<std::function<void()>> undone;  // goes without the lock: what it holds may be the program's
      const std::lock_guard lock(mutex_);
      over_ = true;
      undone.swap(tasks_);
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return over_ || !tasks_.empty(); });
      if (over_) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = {};  // with what it holds
      lock.lock();
    }
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool over_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace backplane::tensorpipe
