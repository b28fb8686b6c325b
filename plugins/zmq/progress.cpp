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

}  // namespace

Driver::Driver(const base::EventFd& wake, const std::vector<int>& descriptors, std::chrono::nanoseconds poll,
               Progress progress, Upkeep upkeep)
    : sleep_(wake, descriptors, poll), progress_(std::move(progress)), upkeep_(std::move(upkeep)) {}

void Driver::wait(Lock& lock, const sdk::Completion& operation, TimePoint deadline) {
  while (!operation.done() && Clock::now() < deadline) {
    if (!driving_) {
      ++drives_;
      drive(lock, &operation, deadline);
      continue;
    }
    std::condition_variable turn;
    const auto entry = waiting_.insert(waiting_.end(), {&turn, &operation});
    if (thread_drives_) sleep_.wake();
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
    if (due > now) sleep_.sleep(lock, std::min(due, deadline), operation != nullptr);
  }
  driving_ = thread_drives_ = false;
  driven_for_ = nullptr;
}

TimePoint Driver::step(Lock& lock, TimePoint until) {
  if (until > Clock::now()) sleep_.sleep(lock, until, false);
  return progress_(nullptr);
}

void Driver::changed(TimePoint due) {
  wake_done();
  const bool finished = driven_for_ != nullptr && driven_for_->done();
  sleep_.wake(finished ? TimePoint::min() : due);
}

void Driver::request_upkeep() {
  upkeep_requested_ = true;
  thread_turn_.notify_one();
  if (thread_drives_) sleep_.wake();
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
  sleep_.wake();
}

}  // namespace backplane::zmq
