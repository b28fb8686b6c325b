// SPDX-License-Identifier: Apache-2.0
//
// Runs tasks on a pool of threads.
//
//     base::Executor executor(4);  // at most four tasks at a time; 1: one after the other, in order
//     executor.add([] { work(); });
//
// Threads start when tasks need them, with all signals blocked, and are kept for later tasks. Queued tasks start in the
// order in which they were added.
//
// A task that blocks until another task has run brackets that with BlockingScope: its thread does not count towards the
// limit meanwhile, so that another one can start. Tasks may wait for each other to any depth that way.
//
// add hands the task to the thread that became idle last and wakes only that one, which begins without a lock. A
// condition variable would cost one more system call per task and wake the thread with the coldest caches.
#pragma once

#include <semaphore.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "deadline.hpp"
#include "signals.hpp"
#include "spin_policy.hpp"

namespace backplane::base {

class Executor {
 public:
  using Task = std::function<void()>;  // must not throw
  // Called, with a lock held, when no further thread can be started; the existing ones run the tasks.
  using OnStartFailure = std::function<void(const std::exception&)>;

  static constexpr size_t kUnlimited = SIZE_MAX;  // a thread for each task that finds none idle

  enum class AtStop { kRunQueued, kDropQueued };

  explicit Executor(size_t max_threads, AtStop at_stop = AtStop::kRunQueued, OnStartFailure on_start_failure = {})
      : state_(std::make_shared<State>(max_threads, at_stop, std::move(on_start_failure))) {}
  // Stops and waits without limit, unless stop has detached the threads. A task may destroy the executor, which then
  // detaches the threads.
  ~Executor() {
    if (!state_->is_abandoned()) stop(inside() ? Deadline::after(0) : Deadline::never());
  }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Any thread, does not block. After stop, returns false and leaves the task unchanged. Throws std::system_error, and
  // does not run the task, if there is no thread and none can be started.
  bool add(Task&& task) { return state_->add(std::move(task)); }

  // Waits until the running tasks have returned. Queued tasks are run as well, or destroyed on this thread (AtStop).
  // Returns false if a task has not returned at the deadline: its thread is detached, and runs whatever is still queued
  // when it returns. May be called again. Must not be called in a task.
  bool stop(Deadline deadline = Deadline::never()) { return state_->stop(deadline); }

  struct Counts {
    size_t threads = 0;
    size_t idle = 0;
    size_t blocked = 0;  // in a BlockingScope
    size_t queued = 0;
  };
  Counts counts() const { return state_->counts(); }

  // Whether the calling thread runs a task of this executor.
  bool inside() const { return State::of_thread == state_.get(); }

  // The implementation of BlockingScope. No effect on threads outside an executor. Calls nest.
  static void begin_blocking() { State::begin_blocking(); }
  static void end_blocking() { State::end_blocking(); }

  class BlockingScope {
   public:
    BlockingScope() { begin_blocking(); }
    ~BlockingScope() { end_blocking(); }
    BlockingScope(const BlockingScope&) = delete;
    BlockingScope& operator=(const BlockingScope&) = delete;
  };

 private:
  struct Thread {
    Thread() { sem_init(&wake, 0, 0); }
    ~Thread() { sem_destroy(&wake); }
    Thread(const Thread&) = delete;
    Thread& operator=(const Thread&) = delete;

    std::thread thread;
    sem_t wake = {};
    Task task;                    // handed over while it was idle; empty: stop
    bool waited_briefly = false;  // for its last task
  };
  using Threads = std::list<Thread>;

  // Shared with the threads: a detached one may outlive the executor.
  class State : public std::enable_shared_from_this<State> {
   public:
    State(size_t max_threads, AtStop at_stop, OnStartFailure on_start_failure)
        : max_threads_(max_threads), at_stop_(at_stop), on_start_failure_(std::move(on_start_failure)) {}

    bool add(Task&& task) {
      std::unique_lock lock(mutex_);
      if (stopped_) return false;
      if (idle_.empty()) {
        queue_.push_back(std::move(task));
        if (!can_start_thread()) return true;
        const std::exception_ptr failure = start_thread();
        if (failure == nullptr || !threads_.empty()) return true;
        task = std::move(queue_.back());
        queue_.pop_back();
        std::rethrow_exception(failure);
      }
      Thread* const thread = idle_.back();
      idle_.pop_back();
      thread->task = std::move(task);
      lock.unlock();  // the woken thread may need it next
      sem_post(&thread->wake);
      return true;
    }

    bool stop(Deadline deadline) {
      std::deque<Task> dropped;  // destroyed without the lock: destructors of captures run user code
      std::unique_lock lock(mutex_);
      stopped_ = true;
      if (at_stop_ == AtStop::kDropQueued) {
        dropped.swap(queue_);
        lock.unlock();
        dropped.clear();
        lock.lock();
      }
      for (Thread* const thread : std::exchange(idle_, {})) sem_post(&thread->wake);
      const auto ended = [this] { return threads_.empty(); };
      if (deadline.infinite()) {
        ended_.wait(lock, ended);
      } else if (!ended_.wait_until(lock, deadline.at(), ended) && !abandoned_) {
        abandoned_ = true;
        for (Thread& thread : threads_) thread.thread.detach();
      }
      join_retired();
      return threads_.empty();
    }

    bool is_abandoned() const {
      const std::lock_guard lock(mutex_);
      return abandoned_;
    }

    Counts counts() const {
      const std::lock_guard lock(mutex_);
      return {threads_.size(), idle_.size(), blocked_, queue_.size()};
    }

    static void begin_blocking() {
      if (of_thread == nullptr || scopes++ > 0) return;
      const std::lock_guard lock(of_thread->mutex_);
      ++of_thread->blocked_;
      if (!of_thread->queue_.empty() && of_thread->can_start_thread()) of_thread->start_thread();
    }
    static void end_blocking() {
      if (of_thread == nullptr || --scopes > 0) return;
      const std::lock_guard lock(of_thread->mutex_);
      --of_thread->blocked_;
    }

    static inline constinit thread_local State* of_thread = nullptr;  // the executor of this thread

   private:
    static constexpr std::chrono::microseconds kBrief{40};

    // All with mutex_ held, except for run, next and wait.
    bool can_start_thread() const { return threads_.size() - blocked_ < max_threads_; }
    bool has_too_many_threads() const { return threads_.size() - blocked_ > max_threads_; }  // after a BlockingScope

    // Starts one thread for the queued tasks. Returns the error if it cannot be started.
    std::exception_ptr start_thread() noexcept {
      join_retired();
      const SignalsBlocked blocked;
      const size_t before = threads_.size();
      try {
        const auto self = threads_.emplace(threads_.end());
        self->thread = std::thread([state = shared_from_this(), self] { state->run(self); });
        if (abandoned_) self->thread.detach();
        return nullptr;
      } catch (const std::exception& e) {
        if (threads_.size() > before) threads_.pop_back();
        if (on_start_failure_) on_start_failure_(e);
        return std::current_exception();
      }
    }
    void join_retired() {
      for (Thread& thread : retired_) thread.thread.join();  // they take no lock any more
      retired_.clear();
    }

    void run(Threads::iterator self) {
      of_thread = this;
      while (const Task task = next(self)) task();
    }

    // Waits for a task. Empty: the thread has been retired, and ends.
    Task next(Threads::iterator self) {
      std::unique_lock lock(mutex_);
      if (!has_too_many_threads()) {
        if (!queue_.empty()) {
          Task first = std::move(queue_.front());
          queue_.pop_front();
          return first;
        }
        if (!stopped_) {
          idle_.push_back(&*self);
          lock.unlock();
          wait(&*self);
          if (self->task) return std::exchange(self->task, {});
          lock.lock();
        }
      }
      if (abandoned_) {
        threads_.erase(self);
      } else {
        retired_.splice(retired_.end(), threads_, self);
      }
      if (stopped_) ended_.notify_all();
      return {};
    }

    // Polls before it sleeps if its last wait was brief, as between successive calls: the thread that adds the next
    // task then makes no system call.
    void wait(Thread* self) {
      const auto begun = SpinPolicy::Clock::now();
      const auto woken = [self] { return sem_trywait(&self->wake) == 0; };
      if (!self->waited_briefly || !spin_policy_.poll(SpinPolicy::Clock::time_point::max(), woken)) {
        while (sem_wait(&self->wake) != 0) {
        }
      }
      self->waited_briefly = SpinPolicy::Clock::now() - begun < spin_policy_.limit();
    }

    static inline constinit thread_local size_t scopes = 0;  // BlockingScopes of this thread, one inside the other

    const size_t max_threads_;
    const AtStop at_stop_;
    const OnStartFailure on_start_failure_;
    SpinPolicy spin_policy_{kBrief};
    mutable std::mutex mutex_;
    std::condition_variable ended_;  // signalled when a thread has ended after stop
    std::deque<Task> queue_;         // empty while a thread is idle
    Threads threads_;
    Threads retired_;            // have ended, or are about to
    std::vector<Thread*> idle_;  // the one that became idle last is at the back
    size_t blocked_ = 0;
    bool stopped_ = false;
    bool abandoned_ = false;  // the threads are detached
  };

  const std::shared_ptr<State> state_;
};

}  // namespace backplane::base
