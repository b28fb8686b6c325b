// SPDX-License-Identifier: Apache-2.0
//
// The thread of a group that performs the asynchronous collectives its backend lacks: one after the other, in the order
// in which they were started, which is the same on all ranks. It is made when first needed.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "group/group.hpp"

namespace backplane::core {

class Group::Engine {
 public:
  Engine() : thread_([this] { work(); }) {}
  ~Engine() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void add(std::shared_ptr<TaskRequest> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

 private:
  // Tasks that are left at the end are performed, too: on a group that is being destroyed they fail at once.
  void work() {
    for (;;) {
      std::shared_ptr<TaskRequest> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task->perform();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<TaskRequest>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace backplane::core
