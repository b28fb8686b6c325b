// SPDX-License-Identifier: Apache-2.0
#include "rpc/pool.hpp"

#include <exception>
#include <utility>

#include "log.hpp"

namespace backplane::core::rpc {
namespace {

thread_local Pool* own_pool = nullptr;
thread_local size_t waits = 0;  // of this thread, one inside the other

}  // namespace

bool Pool::inside() const { return own_pool == this; }

bool Pool::is_crowded() const { return threads_.size() - waiting_ > size_; }

bool Pool::add(std::function<void()>&& task) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    tasks_.push_back(std::move(task));
    if (!take_place()) return true;
  }
  changed_.notify_one();  // without the lock, which is what the thread needs first
  return true;
}

bool Pool::take_place() {
  if (idle_ >= tasks_.size()) return true;
  if (threads_.size() - waiting_ >= size_) return false;
  join_retired();
  try {
    const auto self = threads_.emplace(threads_.end());
    *self = std::thread([pool = shared_from_this(), self] { pool->work(self); });
    if (left_alone_) self->detach();
  } catch (const std::exception& e) {
    threads_.pop_back();
    log(BP_LOG_WARN, "rpc: cannot start a thread for calls ({}); those there are go on", e.what());
  }
  return false;
}

void Pool::join_retired() {
  for (std::thread& thread : retired_) thread.join();  // they hold no lock, and have nothing left to do
  retired_.clear();
}

void Pool::work(std::list<std::thread>::iterator self) {
  own_pool = this;
  std::unique_lock lock(mutex_);
  while (!is_crowded()) {
    ++idle_;
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty() || is_crowded(); });
    --idle_;
    if (!tasks_.empty()) {
      perform(&lock);
    } else if (stop_) {
      break;
    }
  }
  if (left_alone_) {
    threads_.erase(self);
  } else {
    retired_.splice(retired_.end(), threads_, self);
  }
  if (stop_) changed_.notify_all();
}

void Pool::perform(std::unique_lock<std::mutex>* lock) {
  std::function<void()> task = std::move(tasks_.front());
  tasks_.pop_front();
  lock->unlock();
  task();
  task = {};  // what it holds may be the last of something
  lock->lock();
}

bool Pool::stop(Deadline deadline) {
  std::unique_lock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  const auto ended = [this] { return threads_.empty(); };
  if (deadline.infinite()) changed_.wait(lock, ended);
  if (!deadline.infinite() && !changed_.wait_until(lock, deadline.at(), ended) && !left_alone_) {
    left_alone_ = true;
    for (std::thread& thread : threads_) thread.detach();
  }
  join_retired();
  if (!threads_.empty()) return false;
  while (!tasks_.empty()) perform(&lock);  // no thread was to be had for them
  return true;
}

Pool::Counts Pool::counts() const {
  const std::lock_guard lock(mutex_);
  return {threads_.size(), idle_, waiting_, tasks_.size()};
}

void Pool::wait_begin() {
  if (own_pool == nullptr || waits++ > 0) return;
  const std::lock_guard lock(own_pool->mutex_);
  ++own_pool->waiting_;
  if (!own_pool->tasks_.empty() && own_pool->take_place()) own_pool->changed_.notify_one();
}

void Pool::wait_end() {
  if (own_pool == nullptr || --waits > 0) return;
  const std::lock_guard lock(own_pool->mutex_);
  --own_pool->waiting_;
}

}  // namespace backplane::core::rpc
