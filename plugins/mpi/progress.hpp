// SPDX-License-Identifier: Apache-2.0
//
// The progress thread: one per process, while groups exist.
//
// MPI moves data only inside its calls. That includes messages that it has accepted and not sent yet, and the
// acknowledgements for which the senders of long messages wait. A rank that has received everything therefore has to go
// on calling MPI, or its peers may wait for ever. Threads that wait for an operation call MPI themselves. The progress
// thread does so for operations that no thread waits for, and for the peers.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "abandoned.hpp"
#include "api.hpp"

namespace backplane::mpi {

class Operation;

// Thread-safe.
class Progress {
 public:
  // The thread runs while a group holds one of these. The first one starts it and throws BP_RESOURCE if that fails. The
  // last one ends it, and waits for that no longer than base::grace::kPrompt: where MPI does not return, the thread
  // stays, and serves the next first one.
  class Use {
   public:
    explicit Use(Progress& progress) : progress_(progress) { progress_.start(); }
    ~Use() { progress_.stop(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Progress& progress_;
  };

  // Exists while a thread calls MPI until its operation ends.
  class Waiter {
   public:
    explicit Waiter(Progress& progress) : progress_(progress) { ++progress_.waiters_; }
    ~Waiter() {
      progress_.report_end();
      --progress_.waiters_;
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

   private:
    Progress& progress_;
  };

  // What the operations in flight need, in ascending order.
  enum class Need { kNone, kProgress, kPromptEnd };

  Progress(Api& api, AbandonedRequests& abandoned) : api_(api), abandoned_(abandoned) {}

  // Has the thread advance the operation until its removal.
  void add(Operation& operation);
  // The thread may still be advancing the operation, with its mutex held.
  void remove(Operation& operation) noexcept;
  // An operation for which a thread has polled has ended: peers may soon need this rank.
  void report_end() noexcept { is_active_.store(true, std::memory_order_relaxed); }
  // Advances the operations now: a caller awaits the end of one of them, or they are to fail.
  void hurry() noexcept;
  // Whether the thread exists. Without a Use: MPI has not returned to it.
  bool is_running();

 private:
  using Pause = std::chrono::microseconds;

  void start();
  void stop() noexcept;
  void run();
  Need advance_operations(std::unique_lock<std::mutex>& lock);
  void advance_peers() noexcept;

  Api& api_;
  AbandonedRequests& abandoned_;
  std::atomic<int> waiters_ = 0;
  std::atomic<bool> is_active_ = false;  // since the last pass there were operations

  std::mutex use_mutex_;  // start and stop
  int uses_ = 0;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Operation*> operations_;
  std::list<Operation*>::iterator next_ = operations_.end();  // in the thread's pass
  bool is_hurried_ = false;
  bool is_stopped_ = false;
  bool is_running_ = false;  // the thread still obeys is_stopped_
};

}  // namespace backplane::mpi
