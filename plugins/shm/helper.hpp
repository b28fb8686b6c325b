// SPDX-License-Identifier: Apache-2.0
//
// The thread that moves messages on while nobody waits. It begins with the first operation that submit leaves in
// flight, looks once a millisecond whether the program's own threads still drive the group, and takes over if they do
// not; so it costs those that wait nothing. Without operations in flight it sleeps. If it fails it aborts the waiting.
// Its last act after an abort is to end what nobody waits for, if somebody is to be told of that.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "waiting.hpp"

namespace backplane::shm {

class Helper {
 public:
  Helper(Waiting& waiting, std::function<void()> progress, std::function<void()> aborted = {})
      : waiting_(waiting), progress_(std::move(progress)), aborted_(std::move(aborted)) {}
  ~Helper() { stop(); }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  // An operation is left in flight. Any thread, does not block. Throws BP_RESOURCE if there is no thread to be had.
  void begin();
  // It has ended.
  void end() noexcept { in_flight_.fetch_sub(1); }
  // Joins the thread, which ends soon if the group was aborted.
  void stop();

 private:
  void run();
  void drive();

  Waiting& waiting_;
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
