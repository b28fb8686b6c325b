// SPDX-License-Identifier: Apache-2.0
#include "rpc/pool.hpp"

#include <exception>
#include <utility>

#include "log.hpp"

namespace backplane::core::rpc {
namespace {

thread_local Pool* own_pool = nullptr;
thread_local size_t waits = 0;  // of this thread, one inside the other

// The last wait of this thread.
struct Wait {
  base::SpinPolicy::Clock::time_point begun;
  bool was_brief = false;
};
thread_local Wait own_wait;

}  // namespace

bool Pool::inside() const { return own_pool == this; }

bool Pool::is_crowded() const { return threads_.size() - waiting_ > size_; }

bool Pool::add(std::function<void()>&& task) {
  std::unique_lock lock(mutex_);
  if (stop_) return false;
  if (idle_.empty()) {
    tasks_.push_back(std::move(task));
    grow();
    return true;
  }
  Seat* const seat = idle_.back();
  idle_.pop_back();
  seat->task = std::move(task);
  lock.unlock();  // which the thread needs next
  sem_post(&seat->wake);
  return true;
}

void Pool::grow() {
  if (threads_.size() - waiting_ >= size_) return;
  join_retired();
  try {
    const auto self = threads_.emplace(threads_.end());
    self->thread = std::thread([pool = shared_from_this(), self] { pool->work(self); });
    if (left_alone_) self->thread.detach();
  } catch (const std::exception& e) {
    threads_.pop_back();
    log(BP_LOG_WARN, "rpc: cannot start a thread for calls ({}); those there are go on", e.what());
  }
}

void Pool::join_retired() {
  for (Seat& seat : retired_) seat.thread.join();  // they hold no lock, and have nothing left to do
  retired_.clear();
}

void Pool::work(Seats::iterator self) {
  own_pool = this;
  while (const Task task = next(self)) task();  // what it holds may be the last of something
}

Pool::Task Pool::next(Seats::iterator self) {
  std::unique_lock lock(mutex_);
  if (!is_crowded()) {
    if (!tasks_.empty()) return take_first();
    if (!stop_) {
      idle_.push_back(&*self);
      lock.unlock();
      wait(&*self);
      if (self->task) return std::exchange(self->task, {});
      lock.lock();
    }
  }
  if (left_alone_) {
    threads_.erase(self);
  } else {
    retired_.splice(retired_.end(), threads_, self);
  }
  if (stop_) ended_.notify_all();
  return {};
}

// Looks for a moment before it sleeps if its last task came within a moment, as those of calls in a row do: whoever
// adds one then has no system call to make.
void Pool::wait(Seat* seat) {
  const auto begun = base::SpinPolicy::Clock::now();
  const auto woken = [seat] { return sem_trywait(&seat->wake) == 0; };
  if (!seat->waited_briefly || !spin_policy_.poll(base::SpinPolicy::Clock::time_point::max(), woken)) {
    while (sem_wait(&seat->wake) != 0) {
    }
  }
  seat->waited_briefly = base::SpinPolicy::Clock::now() - begun < spin_policy_.limit();
}

Pool::Task Pool::take_first() {
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

bool Pool::stop(Deadline deadline) {
  std::unique_lock lock(mutex_);
  stop_ = true;
  for (Seat* const seat : std::exchange(idle_, {})) sem_post(&seat->wake);
  const auto ended = [this] { return threads_.empty(); };
  if (deadline.infinite()) ended_.wait(lock, ended);
  if (!deadline.infinite() && !ended_.wait_until(lock, deadline.at(), ended) && !left_alone_) {
    left_alone_ = true;
    for (Seat& seat : threads_) seat.thread.detach();
  }
  join_retired();
  if (!threads_.empty()) return false;
  while (!tasks_.empty()) {  // no thread was to be had for them
    const Task task = take_first();
    lock.unlock();
    task();
    lock.lock();
  }
  return true;
}

Pool::Counts Pool::counts() const {
  const std::lock_guard lock(mutex_);
  return {threads_.size(), idle_.size(), waiting_, tasks_.size()};
}

void Pool::wait_begin() {
  own_wait.begun = base::SpinPolicy::Clock::now();
  if (own_pool == nullptr || waits++ > 0) return;
  const std::lock_guard lock(own_pool->mutex_);
  ++own_pool->waiting_;
  if (!own_pool->tasks_.empty()) own_pool->grow();
}

void Pool::wait_end() {
  own_wait.was_brief = base::SpinPolicy::Clock::now() - own_wait.begun < kMoment;
  if (own_pool == nullptr || --waits > 0) return;
  const std::lock_guard lock(own_pool->mutex_);
  --own_pool->waiting_;
}

bool Pool::wait_briefly(const std::function<bool()>& ready) {
  static base::SpinPolicy policy(kMoment);  // of all threads that wait for calls of their own
  return own_wait.was_brief && policy.poll(base::SpinPolicy::Clock::time_point::max(), ready);
}

}  // namespace backplane::core::rpc
