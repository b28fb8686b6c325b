// SPDX-License-Identifier: Apache-2.0
#include "group/watchdog.hpp"

#include <algorithm>
#include <utility>

#include "waiting.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kMinPollPauseNs = 20'000;
constexpr int64_t kMaxPollPauseNs = 1'000'000;

}  // namespace

void Watchdog::start() {
  if (thread_.joinable()) return;
  thread_ = start_quiet_thread("bp-watchdog", [self = shared_from_this()] { self->run(); });
}

void Watchdog::expect(Deadline deadline) {
  if (deadline.infinite()) return;
  const std::lock_guard lock(mutex_);
  if (stopped_ || !(deadline < next_)) return;
  start();
  next_ = deadline;
  changed_.notify_all();
}

void Watchdog::ensure_thread() {
  const std::lock_guard lock(mutex_);
  if (!stopped_) start();
}

void Watchdog::poll(const std::weak_ptr<Request>& request) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  start();
  polled_.push_back(request);
  pause_ns_ = kMinPollPauseNs;
  changed_.notify_all();
}

void Watchdog::notify_ended(const std::weak_ptr<Request>& request) noexcept {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  ended_.push_back(request);
  changed_.notify_all();
}

void Watchdog::fail(const Error& why) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || has_failed_) return;
  start();
  has_failed_ = true;
  failure_.emplace(why);
  changed_.notify_all();
}

void Watchdog::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) return thread.detach();
  thread.join();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const bool has_work = !ended_.empty() || failure_ || next_.passed();
    if (!has_work) {
      Deadline until = next_;
      if (!polled_.empty()) until = std::min(until, Deadline::after(pause_ns_));
      wait_on(changed_, lock, until);
      if (stopped_) return;
    }
    run_once(lock);
  }
}

// Releases the lock while it works. A callback on this thread may end the group meanwhile.
void Watchdog::run_once(std::unique_lock<std::mutex>& lock) {
  const std::vector<std::weak_ptr<Request>> ended = std::exchange(ended_, {});
  std::vector<std::weak_ptr<Request>> polled = std::exchange(polled_, {});
  const bool is_due = next_.passed();
  if (is_due) next_ = Deadline::never();
  const std::optional<Error> failure = failure_;
  failure_.reset();
  lock.unlock();
  const auto is_running = [this] {
    const std::lock_guard again(mutex_);
    return !stopped_;
  };
  if (failure) failures_.report(*failure);
  for (const auto& each : ended) {
    if (const auto request = each.lock(); request && is_running()) test(request);
  }
  const size_t before = polled.size();
  std::erase_if(polled, [&is_running](const std::weak_ptr<Request>& each) {
    const auto request = each.lock();
    return !request || !is_running() || test(request);
  });
  const Deadline next = is_due && is_running() ? requests_.end_overdue() : Deadline::never();
  lock.lock();
  next_ = std::min(next_, next);
  pause_ns_ = polled.size() < before ? kMinPollPauseNs : std::min(pause_ns_ * 2, kMaxPollPauseNs);
  polled_.insert(polled_.end(), polled.begin(), polled.end());
}

bool Watchdog::test(const std::shared_ptr<Request>& request) {
  try {
    return request->test();
  } catch (const Error&) {  // the request keeps it
    return true;
  }
}

}  // namespace backplane::core
