// SPDX-License-Identifier: Apache-2.0
#include "helper.hpp"

#include <chrono>

#include "backplane/sdk/worker.hpp"

namespace backplane::shm {
namespace {

constexpr auto kHelperPause = std::chrono::milliseconds(1);
constexpr int kIdleLooks = 100;  // looks without anything in flight, after which the thread sleeps

}  // namespace

void Helper::begin() {
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
        if (status != BP_OK) waiting_.abort(sdk::Failure(why));
        if (waiting_.aborted() && aborted_) aborted_();
      });
      is_started_.store(true);
    }
  }
  in_flight_.fetch_add(1);
  if (!is_idle_.load()) return;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Helper::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    changed_.notify_all();
  }
  waiting_.wake();
  if (thread_.joinable()) thread_.join();
}

void Helper::run() {
  uint64_t seen = 0;
  int idle = 0;
  while (!stopping_.load() && !waiting_.aborted()) {
    {
      std::unique_lock lock(mutex_);
      if (idle >= kIdleLooks) {
        is_idle_.store(true);
        changed_.wait(lock, [this] { return stopping_.load() || waiting_.aborted() || in_flight_.load() > 0; });
        is_idle_.store(false);
        idle = 0;
      } else {
        changed_.wait_for(lock, kHelperPause, [this] { return stopping_.load(); });
      }
    }
    idle = in_flight_.load() > 0 ? 0 : idle + 1;
    const uint64_t drives = waiting_.drives();
    if (idle == 0 && drives == seen && waiting_.drivers() == 0) drive();
    seen = drives;
  }
}

void Helper::drive() {
  const uint64_t drives = waiting_.drives();
  waiting_.sleep_until([this, drives] {
    progress_();
    return stopping_.load() || in_flight_.load() == 0 || waiting_.drives() != drives || waiting_.drivers() > 0;
  });
}

}  // namespace backplane::shm
