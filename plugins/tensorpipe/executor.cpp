// SPDX-License-Identifier: Apache-2.0
#include "executor.hpp"

#include <utility>

#include "backplane/sdk/worker.hpp"

namespace backplane::tensorpipe {

void TimedExecutor::start() {
  thread_ = sdk::start_thread([this] { run(); });
}

void TimedExecutor::add(Task task, Clock::time_point due) {
  const std::lock_guard lock(mutex_);
  tasks_.emplace(due, std::move(task));
  changed_.notify_all();
}

void TimedExecutor::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void TimedExecutor::run() {
  std::unique_lock lock(mutex_);
  while (!is_stopped_) {
    if (tasks_.empty()) {
      changed_.wait(lock);
    } else if (const Clock::time_point due = tasks_.begin()->first; due > Clock::now()) {
      changed_.wait_until(lock, due);
    } else {
      const auto next = tasks_.extract(tasks_.begin());
      lock.unlock();
      next.mapped()();
      lock.lock();
    }
  }
}

}  // namespace backplane::tensorpipe
