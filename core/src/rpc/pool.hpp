// SPDX-License-Identifier: Apache-2.0
//
// The threads that run functions for others. So many work at a time; one that waits for a call of its own does not
// count, and another one takes its place, so that calls may be nested to any depth.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "deadline.hpp"

namespace backplane::core::rpc {

// Made shared: a thread that cannot be waited for keeps its pool. To be stopped by whoever has made it.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  explicit Pool(size_t size) : size_(size) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Any thread, does not block. False once it has been stopped; the task is left alone then.
  bool add(std::function<void()>&& task);
  // Waits until all that was added has run. False: at the deadline something still did, which is left alone with its
  // thread, and what was added behind it runs when it ends. Twice is fine. Not from within a task.
  bool stop(Deadline deadline = Deadline::never());

  struct Counts {
    size_t threads = 0;
    size_t idle = 0;
    size_t waiting = 0;  // in calls of their own
    size_t queued = 0;
  };
  Counts counts() const;

  // Of the pool whose task this thread runs; nothing elsewhere. They nest.
  static void wait_begin();
  static void wait_end();
  // Does this thread run a task of this pool?
  bool inside() const;

 private:
  void work(std::list<std::thread>::iterator self);
  void perform(std::unique_lock<std::mutex>* lock);  // the first task
  bool take_place();        // true: wake one; else it starts one that is missing. With mutex_ held
  void join_retired();      // of those that have ended; with mutex_ held
  bool is_crowded() const;  // with mutex_ held

  const size_t size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::list<std::thread> threads_;
  std::list<std::thread> retired_;
  size_t idle_ = 0;
  size_t waiting_ = 0;
  bool stop_ = false;
  bool left_alone_ = false;  // nobody joins the threads
};

}  // namespace backplane::core::rpc
