// SPDX-License-Identifier: Apache-2.0
//
// The threads that wait for the sockets. At most one thread at a time, the driver, sleeps on their descriptors. It
// progresses all operations of the group. A thread that waits for an operation becomes the driver, because handing a
// message from one thread to another costs more than receiving it. The group's own thread drives when no other thread
// waits. It takes over one millisecond after the last driver, so that it does not compete with a program that starts
// the next operation at once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <vector>

#include "backplane/base/event_fd.hpp"
#include "backplane/sdk/completion.hpp"
#include "options.hpp"
#include "sleep.hpp"

namespace backplane::zmq {

class Driver {
 public:
  using Lock = std::unique_lock<std::mutex>;
  // Progresses all operations, or returns early when `wanted` (may be null) is done. Returns the latest time of the
  // next call. Called by the driver, locked.
  using Progress = std::function<TimePoint(const sdk::Completion* wanted)>;
  // Work of the group's own thread. May unlock meanwhile. Returns the latest time of the next call.
  using Upkeep = std::function<TimePoint(Lock&)>;

  // `poll`: how long a waiting thread polls the descriptors before it sleeps on them, if its SpinPolicy permits.
  Driver(const base::EventFd& wake, const std::vector<int>& descriptors, std::chrono::nanoseconds poll,
         Progress progress, Upkeep upkeep);

  // Guards the whole group.
  std::mutex& mutex() { return mutex_; }

  // Waits until the operation is done or the deadline has passed.
  void wait(Lock& lock, const sdk::Completion& operation, TimePoint deadline);
  // Call, locked, after a thread other than the driver has progressed operations. `due`: when to progress next at the
  // latest.
  void changed(TimePoint due = TimePoint::max());
  bool driving() const { return driving_; }
  // Makes the group's thread do its upkeep now. Locked.
  void request_upkeep();
  // The descriptors will be closed. Only within progress.
  void forget_descriptors() { sleep_.forget_descriptors(); }

  // The body of the group's thread, until stop().
  void run();
  void stop();
  // For the only thread that uses the group: sleeps until something happens or until the given time, then progresses.
  TimePoint step(Lock& lock, TimePoint until);

 private:
  struct Waiter {
    std::condition_variable* turn;
    const sdk::Completion* operation;
  };

  void drive(Lock& lock, const sdk::Completion* operation, TimePoint deadline);
  void stand_by(Lock& lock, TimePoint due);
  void pass_on();
  void wake_done();

  DescriptorSleep sleep_;  // of the driver
  const Progress progress_;
  const Upkeep upkeep_;

  std::mutex mutex_;
  bool driving_ = false;
  bool thread_drives_ = false;
  const sdk::Completion* driven_for_ = nullptr;  // the driver's operation; null for the group's thread
  uint64_t drives_ = 0;                          // by waiting threads
  std::list<Waiter> waiting_;                    // threads that sleep until done or until they may drive
  std::condition_variable thread_turn_;
  bool parked_ = false;  // the group's thread sleeps until no other thread drives
  bool upkeep_requested_ = false;
  bool stopping_ = false;
};

}  // namespace backplane::zmq
