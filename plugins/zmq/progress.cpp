// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <algorithm>
#include <utility>

namespace backplane::zmq {
namespace {

using Clock = std::chrono::steady_clock;

// Delay before the group's thread takes over: longer than the pause between two operations of a busy program, shorter
// than a latency of asynchronous operations that users would notice.
constexpr std::chrono::milliseconds kWatch(1);

// Limits a time to one day from now, so that clock arithmetic cannot overflow.
TimePoint bounded(TimePoint until) { return std::min(until, Clock::now() + std::chrono::hours(24)); }

}  // namespace

TimePoint deadline_after(int64_t timeout_ns) {
  constexpr int64_t kYear = INT64_C(365) * 86400 * 1000000000;  // the clock would overflow far beyond it
  return timeout_ns < 0 || timeout_ns > kYear ? TimePoint::max() : Clock::now() + std::chrono::nanoseconds(timeout_ns);
}

bool poll_until(std::vector<pollfd>& polled, TimePoint until) {
  for (pollfd& each : polled) each.revents = 0;
  const auto left = std::max<std::chrono::nanoseconds>(bounded(until) - Clock::now(), std::chrono::nanoseconds(0));
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  const timespec timeout = {seconds.count(), (left - seconds).count()};
  return ppoll(polled.data(), polled.size(), &timeout, nullptr) > 0;
}

Driver::Driver(const base::EventFd& wake, const std::vector<int>& descriptors, std::chrono::nanoseconds poll,
               Progress progress, Upkeep upkeep)
    : wake_(wake),
      polled_{{wake.get(), POLLIN, 0}},
      spin_policy_(poll),
      progress_(std::move(progress)),
      upkeep_(std::move(upkeep)) {
  for (const int descriptor : descriptors) polled_.push_back({descriptor, POLLIN, 0});
}

void Driver::wait(Lock& lock, const sdk::Completion& operation, TimePoint deadline) {
  while (!operation.done() && Clock::now() < deadline) {
    if (!driving_) {
      ++drives_;
      drive(lock, &operation, deadline);
      continue;
    }
    std::condition_variable turn;
    const auto entry = waiting_.insert(waiting_.end(), {&turn, &operation});
    if (thread_drives_ && sleeping_) wake_.raise();
    turn.wait_until(lock, bounded(deadline));
    waiting_.erase(entry);
  }
  pass_on();
}

// As long as any thread waits, one of them drives.
void Driver::pass_on() {
  if (driving_) return;
  if (!waiting_.empty()) {
    waiting_.front().turn->notify_one();
  } else if (parked_) {
    thread_turn_.notify_one();
  }
}

void Driver::wake_done() {
  for (const Waiter& each : waiting_) {
    if (each.operation->done()) each.turn->notify_one();
  }
}

void Driver::drive(Lock& lock, const sdk::Completion* operation, TimePoint deadline) {
  driving_ = true;
  driven_for_ = operation;
  thread_drives_ = operation == nullptr;
  for (;;) {
    const TimePoint due = progress_(operation);
    wake_done();
    if (operation != nullptr ? operation->done() : stopping_ || upkeep_requested_ || !waiting_.empty()) break;
    const TimePoint now = Clock::now();
    if (now >= deadline) break;
    if (due > now) sleep(lock, std::min(due, deadline));
  }
  driving_ = thread_drives_ = false;
  driven_for_ = nullptr;
}

void Driver::sleep(Lock& lock, TimePoint until) {
  sleeping_ = true;
  sleeping_until_ = until;
  const bool polls = driven_for_ != nullptr;
  lock.unlock();
  // Polling yields the processor to libzmq's threads.
  if (!polls || !spin_policy_.poll(until, [this] { return poll_until(polled_, {}); })) poll_until(polled_, until);
  if (polled_[0].revents != 0) wake_.clear();
  lock.lock();
  sleeping_ = false;
}

TimePoint Driver::step(Lock& lock, TimePoint until) {
  if (until > Clock::now()) sleep(lock, until);
  return progress_(nullptr);
}

void Driver::changed(TimePoint due) {
  wake_done();
  const bool finished = driven_for_ != nullptr && driven_for_->done();
  if (sleeping_ && (finished || due < sleeping_until_)) wake_.raise();
}

void Driver::request_upkeep() {
  upkeep_requested_ = true;
  thread_turn_.notify_one();
  if (thread_drives_ && sleeping_) wake_.raise();
}

void Driver::run() {
  Lock lock(mutex_);
  uint64_t seen = drives_;
  while (!stopping_) {
    upkeep_requested_ = false;
    const TimePoint due = upkeep_(lock);
    if (stopping_ || upkeep_requested_) continue;
    if (driving_ || !waiting_.empty() || drives_ != seen) {
      seen = drives_;
      stand_by(lock, due);
    } else {
      drive(lock, nullptr, due);
      pass_on();
    }
  }
}

void Driver::stand_by(Lock& lock, TimePoint due) {
  const uint64_t seen = drives_;
  thread_turn_.wait_until(lock, std::min(bounded(due), Clock::now() + kWatch),
                          [this] { return stopping_ || upkeep_requested_; });
  if (!driving_ || drives_ != seen) return;
  // Another thread drives for long: sleep until it stops.
  parked_ = true;
  thread_turn_.wait_until(lock, bounded(due), [this] { return stopping_ || upkeep_requested_ || !driving_; });
  parked_ = false;
}

void Driver::stop() {
  const Lock lock(mutex_);
  stopping_ = true;
  thread_turn_.notify_one();
  wake_.raise();
}

}  // namespace backplane::zmq
