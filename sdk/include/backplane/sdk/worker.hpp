// SPDX-License-Identifier: Apache-2.0
//
// For libraries that block: operations that run on threads of the backend's own, in the order in which they were
// submitted.
//
//     Workers workers_{2};
//     return workers_.submit([...] { library_blocks(); });  // a Work that ends as the function returns or throws
//
// Collectives are safe in it, also with several threads: every rank starts them in the same order, so that the oldest
// unfinished one has a thread everywhere and gets on.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "completion.hpp"

namespace backplane::sdk {

// While it lives, threads started by this thread take no signal: those are for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

class Workers {
 public:
  // The threads start with the first submit.
  explicit Workers(size_t thread_count) : thread_count_(thread_count) {}
  // Fails what waits and joins the threads: what blocks them must have been ended before.
  ~Workers() {
    abort(Failure(BP_CANCELLED, "the group was destroyed"));
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Any thread. A task that has not started can be cancelled through its Work, which must not outlive this object.
  std::unique_ptr<Work> submit(std::function<void()> run) {
    auto completion = std::make_shared<Completion>();
    const std::lock_guard lock(mutex_);
    if (ended_) throw Failure(*ended_);
    if (threads_.empty()) start();
    waiting_.push_back({std::move(run), completion});
    changed_.notify_one();
    return std::make_unique<CompletionWork>(completion, [this, which = completion.get()] { cancel(which); });
  }

  // Fails what has not started and whatever is submitted later. Any thread, does not block.
  void abort(const Failure& why) {
    const std::lock_guard lock(mutex_);
    if (!ended_) ended_.emplace(why);
    for (const Task& task : waiting_) task.completion->fail(*ended_);
    waiting_.clear();
    changed_.notify_all();
  }

 private:
  struct Task {
    std::function<void()> run;
    std::shared_ptr<Completion> completion;
  };

  void start() {
    const SignalsBlocked blocked;
    for (size_t i = 0; i < thread_count_; ++i) threads_.emplace_back([this] { work(); });
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      Task task = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      settle(task);
      task = {};
      lock.lock();
    }
  }

  static void settle(const Task& task) {
    bp_error err;
    bp_error_init(&err);
    const int32_t status = guarded(&err, [&task] {
      task.run();
      return BP_OK;
    });
    if (status == BP_OK) {
      task.completion->finish();
    } else {
      task.completion->fail(Failure(err));
    }
  }

  void cancel(const Completion* which) {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [which](const Task& task) {
      if (task.completion.get() != which) return false;
      task.completion->fail(Failure(BP_CANCELLED, "cancelled by this rank before it had started"));
      return true;
    });
  }

  const size_t thread_count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> waiting_;
  std::optional<Failure> ended_;
  std::vector<std::thread> threads_;
};

}  // namespace backplane::sdk
