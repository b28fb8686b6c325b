// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace backplane::zmq {
namespace {

using Clock = std::chrono::steady_clock;

// How long the group's thread watches before it takes over: longer than the pause between two operations of a busy
// program, short against the latency of an asynchronous operation that a user would notice.
constexpr std::chrono::milliseconds kWatch(1);

// Far enough for "no deadline", near enough for every clock's arithmetic.
TimePoint bounded(TimePoint until) { return std::min(until, Clock::now() + std::chrono::hours(24)); }

}  // namespace

EventFd::EventFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw sdk::Failure(BP_RESOURCE, "zmq: no descriptor left for an eventfd", -1, errno);
}
EventFd::~EventFd() { close(fd_); }
void EventFd::raise() const { eventfd_write(fd_, 1); }
void EventFd::clear() const {
  eventfd_t count = 0;
  eventfd_read(fd_, &count);
}

Driver::Driver(const EventFd& wake, const std::vector<int>& descriptors, std::chrono::nanoseconds poll,
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
    if (operation != nullptr ? operation->done() : stopping_ || attention_ || !waiting_.empty()) break;
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
  if (!polls || !spin_policy_.poll(until, [this] { return poll({}); })) poll(until);
  if (polled_[0].revents != 0) wake_.clear();
  lock.lock();
  sleeping_ = false;
}

bool Driver::poll(TimePoint until) {
  const auto left = std::max<std::chrono::nanoseconds>(bounded(until) - Clock::now(), std::chrono::nanoseconds(0));
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  const timespec timeout = {seconds.count(), (left - seconds).count()};
  return ppoll(polled_.data(), polled_.size(), &timeout, nullptr) > 0;
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

void Driver::call_thread() {
  attention_ = true;
  thread_turn_.notify_one();
  if (thread_drives_ && sleeping_) wake_.raise();
}

void Driver::run() {
  Lock lock(mutex_);
  uint64_t seen = drives_;
  while (!stopping_) {
    attention_ = false;
    const TimePoint due = upkeep_(lock);
    if (stopping_ || attention_) continue;
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
                          [this] { return stopping_ || attention_; });
  if (!driving_ || drives_ != seen) return;
  // Another thread drives for long: sleep until it stops.
  parked_ = true;
  thread_turn_.wait_until(lock, bounded(due), [this] { return stopping_ || attention_ || !driving_; });
  parked_ = false;
}

void Driver::stop() {
  const Lock lock(mutex_);
  stopping_ = true;
  thread_turn_.notify_one();
  wake_.raise();
}

}  // namespace backplane::zmq
