// SPDX-License-Identifier: Apache-2.0
//
// The threads that run functions for others. So many work at a time; one that waits for a call of its own does not
// count, and another one takes its place, so that calls may be nested to any depth.
//
// Whoever adds a task hands it to the thread that has become idle last, and wakes that one alone, which then needs no
// lock to begin: with a condition variable a null call takes a system call more, and goes to the coldest thread.
#pragma once

#include <semaphore.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backplane/base/spin_policy.hpp"
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

  // Around what this thread waits for; another one takes its place if it runs a task of a pool. They nest.
  static void wait_begin();
  static void wait_end();
  // In between: looks for a moment, as idle threads do. False when it is time to sleep.
  static bool wait_briefly(const std::function<bool()>& ready);
  // Does this thread run a task of this pool?
  bool inside() const;

 private:
  using Task = std::function<void()>;

  static constexpr std::chrono::microseconds kMoment{40};

  struct Seat {
    Seat() { sem_init(&wake, 0, 0); }
    ~Seat() { sem_destroy(&wake); }
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;

    std::thread thread;
    sem_t wake = {};
    Task task;                    // given while it was idle; none: the pool stops
    bool waited_briefly = false;  // for its last task
  };
  using Seats = std::list<Seat>;

  void work(Seats::iterator self);
  Task next(Seats::iterator self);  // waits for it; none: the thread has given up its seat, and ends
  void wait(Seat* seat);            // until it is woken
  Task take_first();                // with mutex_ held
  void grow();                      // one thread more for what is queued, if there may be; with mutex_ held
  void join_retired();              // of those that have ended; with mutex_ held
  bool is_crowded() const;          // with mutex_ held

  const size_t size_;
  base::SpinPolicy spin_policy_{kMoment};
  mutable std::mutex mutex_;
  std::condition_variable ended_;  // a thread has, after stop
  std::deque<Task> tasks_;         // empty while somebody is idle
  Seats threads_;
  Seats retired_;
  std::vector<Seat*> idle_;  // the last one first
  size_t waiting_ = 0;
  bool stop_ = false;
  bool left_alone_ = false;  // nobody joins the threads
};

}  // namespace backplane::core::rpc
