// SPDX-License-Identifier: Apache-2.0
//
// A Work for backends that finish operations on their own thread. The thread holds the Completion, the core holds the
// Work, and both share the state. A group of such works supports completion notices through notify_table().
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "notify.hpp"
#include "process_group.hpp"

namespace backplane::sdk {

// The terminal state of one operation. Set once; later calls have no effect. Any thread.
class Completion {
 public:
  void finish() { settle(std::nullopt); }
  void fail(const Failure& failure) { settle(failure); }
  // Finished or failed. Takes no lock.
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }

  // Like Work::wait.
  bool wait(int64_t timeout_ns) {
    if (timeout_ns == 0 && !done()) return false;
    std::unique_lock lock(mutex_);
    const auto done = [this] { return done_.load(); };
    if (timeout_ns < 0) {
      changed_.wait(lock, done);
    } else if (timeout_ns > 0) {
      changed_.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kLongest)), done);
    }
    if (done_ && failure_) throw Failure(*failure_);
    return done_;
  }

  // Like Work::on_end. `wait` returns only after the notice was delivered: both take the lock.
  void on_end(Notice notice) {
    const std::lock_guard lock(mutex_);
    notice_ = notice;
    if (done_) notice_.give();
  }

 private:
  static constexpr int64_t kLongest = INT64_C(30'000'000'000'000'000);  // a year: now + INT64_MAX would overflow

  void settle(std::optional<Failure> failure) {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    failure_ = std::move(failure);
    done_ = true;
    changed_.notify_all();
    notice_.give();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_ = false;  // written under the lock
  Notice notice_;
  std::optional<Failure> failure_;
};

// The Work of a Completion. `on_cancel` (may be empty) asks the backend to cancel the operation. It is called from any
// thread and must not throw.
class CompletionWork final : public Work {
 public:
  explicit CompletionWork(std::shared_ptr<Completion> completion, std::function<void()> on_cancel = {})
      : completion_(std::move(completion)), on_cancel_(std::move(on_cancel)) {}

  Completion& completion() const noexcept { return *completion_; }

  bool wait(int64_t timeout_ns) override { return completion_->wait(timeout_ns); }
  bool on_end(Notice notice) override {
    completion_->on_end(notice);
    return true;
  }
  void cancel() noexcept override {
    if (on_cancel_) on_cancel_();
  }

 private:
  std::shared_ptr<Completion> completion_;
  std::function<void()> on_cancel_;
};

}  // namespace backplane::sdk
