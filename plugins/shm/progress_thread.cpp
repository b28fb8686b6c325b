// SPDX-License-Identifier: Apache-2.0
#include "progress_thread.hpp"

#include <chrono>

#include "backplane/sdk/worker.hpp"

namespace backplane::shm {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(1);
constexpr int kIdlePolls = 100;  // polls without operations in flight, after which the thread sleeps

}  // namespace

void ProgressThread::operation_started() {
  if (!is_started_.load()) {
    const std::lock_guard lock(mutex_);
    if (!is_started_.load() && !stopping_.load()) {
      thread_ = sdk::start_thread([this] {
        bp_error why;
        bp_error_init(&why);
        const int32_t status = sdk::guarded(&why, [this] {
          run();
          return BP_OK;
        });
        if (status != BP_OK) waiter_.abort(sdk::Failure(why));
        if (waiter_.aborted() && aborted_) aborted_();
      });
      is_started_.store(true);
    }
  }
  in_flight_.fetch_add(1);
  if (!is_idle_.load()) return;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void ProgressThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    changed_.notify_all();
  }
  waiter_.wake();
  if (thread_.joinable()) thread_.join();
}

void ProgressThread::run() {
  uint64_t seen = 0;
  int idle = 0;
  while (!stopping_.load() && !waiter_.aborted()) {
    {
      std::unique_lock lock(mutex_);
      if (idle >= kIdlePolls) {
        is_idle_.store(true);
        changed_.wait(lock, [this] { return stopping_.load() || waiter_.aborted() || in_flight_.load() > 0; });
        is_idle_.store(false);
        idle = 0;
      } else {
        changed_.wait_for(lock, kPollInterval, [this] { return stopping_.load(); });
      }
    }
    idle = in_flight_.load() > 0 ? 0 : idle + 1;
    const uint64_t drives = waiter_.drives();
    if (idle == 0 && drives == seen && waiter_.drivers() == 0) drive();
    seen = drives;
  }
}

void ProgressThread::drive() {
  const uint64_t drives = waiter_.drives();
  waiter_.sleep_until([this, drives] {
    progress_();
    return stopping_.load() || in_flight_.load() == 0 || waiter_.drives() != drives || waiter_.drivers() > 0;
  });
}

}  // namespace backplane::shm
