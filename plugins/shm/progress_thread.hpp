// SPDX-License-Identifier: Apache-2.0
//
// A thread that makes progress while no thread of the program waits. It starts with the first operation left in flight
// by submit, checks every millisecond whether threads of the program make progress, and takes over if they do not.
// Without operations in flight it sleeps. If it fails, it aborts the group. After an abort it completes operations with
// registered notices.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "progress.hpp"

namespace backplane::shm {

class ProgressThread {
 public:
  ProgressThread(Waiter& waiter, std::function<void()> progress, std::function<void()> aborted = {})
      : waiter_(waiter), progress_(std::move(progress)), aborted_(std::move(aborted)) {}
  ~ProgressThread() { stop(); }
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // An operation is left in flight. Any thread, does not block. Throws BP_RESOURCE if no thread can be started.
  void operation_started();
  void operation_ended() noexcept { in_flight_.fetch_sub(1); }
  // Joins the thread, which ends soon after an abort.
  void stop();

 private:
  void run();
  void drive();

  Waiter& waiter_;
  const std::function<void()> progress_;
  const std::function<void()> aborted_;
  std::atomic<int64_t> in_flight_ = 0;
  std::atomic<bool> is_idle_ = false;
  std::atomic<bool> is_started_ = false;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace backplane::shm
