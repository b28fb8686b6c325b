// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <algorithm>
#include <utility>

#include "backplane/base/grace.hpp"
#include "backplane/sdk/worker.hpp"
#include "operation.hpp"

namespace backplane::mpi {
namespace {

// Between two passes: where a caller awaits an end, like a waiting thread; while operations are in flight or have just
// ended; and where nothing happens, since peers may need this rank at any time.
constexpr std::chrono::microseconds kPromptPause{50};
constexpr std::chrono::microseconds kPause{1000};
constexpr std::chrono::microseconds kIdlePause{20'000};
// A pause before a prompt end is this part of the time since the last one (Operation::wait_long).
constexpr int kPart = 8;
// About ten times as long as MPI needs for one.
constexpr std::chrono::microseconds kPausePerOperation{1};

}  // namespace

void Progress::start() {
  const std::lock_guard use(use_mutex_);
  if (uses_ == 0) {
    std::unique_lock lock(mutex_);
    is_stopped_ = false;
    if (!is_running_) {
      lock.unlock();
      if (thread_.joinable()) thread_.join();  // it ended late
      thread_ = sdk::start_thread([this] { run(); });
      lock.lock();
      is_running_ = true;
    }
  }
  ++uses_;
}

void Progress::stop() noexcept {
  const std::lock_guard use(use_mutex_);
  if (--uses_ > 0) return;
  {
    std::unique_lock lock(mutex_);
    is_stopped_ = true;
    changed_.notify_all();
    const auto limit = base::Deadline::after(base::grace::kPrompt).at();
    if (!changed_.wait_until(lock, limit, [this] { return !is_running_; })) return;
  }
  thread_.join();
}

bool Progress::is_running() {
  const std::lock_guard lock(mutex_);
  return is_running_;
}

void Progress::add(Operation& operation) {
  const std::lock_guard lock(mutex_);
  operation.position_ = operations_.insert(operations_.end(), &operation);
  operation.is_listed_ = true;
  is_active_.store(true, std::memory_order_relaxed);
}

void Progress::remove(Operation& operation) noexcept {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(operation.is_listed_, false)) return;
  if (next_ == operation.position_) ++next_;
  operations_.erase(operation.position_);
}

void Progress::hurry() noexcept {
  const std::lock_guard lock(mutex_);
  is_hurried_ = true;
  changed_.notify_all();
}

void Progress::run() {
  using Clock = std::chrono::steady_clock;
  Pause pause = kPause;
  Clock::time_point quiet = Clock::now();  // since then nothing has ended
  std::unique_lock lock(mutex_);
  while (!is_stopped_) {
    changed_.wait_for(lock, pause, [this] { return is_stopped_ || is_hurried_; });
    const bool is_hurried = std::exchange(is_hurried_, false);
    const bool is_active = is_active_.exchange(false, std::memory_order_relaxed) || is_hurried;
    const Need need = advance_operations(lock);
    if (waiters_ == 0) {
      lock.unlock();
      advance_peers();
      lock.lock();
    }
    if (need == Need::kPromptEnd) {
      const Clock::time_point now = Clock::now();
      if (is_active) quiet = now;
      pause = std::clamp(std::chrono::duration_cast<Pause>((now - quiet) / kPart), kPromptPause, kPause);
    } else {
      pause = need == Need::kNone && !is_active ? std::min(2 * pause, kIdlePause) : kPause;
    }
    pause = std::max(pause, kPausePerOperation * static_cast<int64_t>(operations_.size()));
  }
  is_running_ = false;
  changed_.notify_all();
}

// One pass. The lock, of mutex_, is released while MPI is called.
Progress::Need Progress::advance_operations(std::unique_lock<std::mutex>& lock) {
  Need most = Need::kNone;
  for (next_ = operations_.begin(); next_ != operations_.end();) {
    Operation& operation = **next_++;
    std::unique_lock in_use(operation.mutex_, std::try_to_lock);
    if (!in_use) continue;  // another thread advances it
    lock.unlock();
    const Need need = operation.advance_unwaited();
    lock.lock();
    if (need == Need::kNone && std::exchange(operation.is_listed_, false)) {
      operations_.erase(operation.position_);
      is_active_.store(true, std::memory_order_relaxed);
    }
    most = std::max(most, need);
  }
  return most;
}

void Progress::advance_peers() noexcept {
  // A long message comes in parts, of which a call moves a few.
  constexpr int kCalls = 16;
  try {
    for (int i = 0; i < kCalls; ++i) api_.progress();
    abandoned_.reap(api_);
  } catch (const std::exception&) {
    // The operations report failures.
  }
}

}  // namespace backplane::mpi
