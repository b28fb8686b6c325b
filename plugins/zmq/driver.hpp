// SPDX-License-Identifier: Apache-2.0
//
// Who waits for the sockets. At any time at most one thread, the driver, sleeps on their descriptors; it then moves on
// every operation of the group, not only its own. A thread that waits for an operation becomes the driver itself,
// because handing a message from one thread to another costs more than receiving it. The group's own thread drives when
// nobody waits: it takes over a moment after the last driver has gone, so that it stays out of the way of a program
// that goes from one operation straight to the next.
#pragma once

#include <poll.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <vector>

#include "backplane/sdk/spin_policy.hpp"
#include "operation.hpp"
#include "protocol.hpp"

namespace backplane::zmq_plugin {

// Closes itself; close-on-exec.
class EventFd {
 public:
  EventFd();
  ~EventFd();
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;
  int get() const { return fd_; }
  void raise() const;
  void clear() const;

 private:
  int fd_;
};

class Driver {
 public:
  using Lock = std::unique_lock<std::mutex>;
  // Moves on what can be moved, or enough to be done with `wanted` (null: everything); returns when to be called again
  // at the latest. Called by the driver, locked.
  using Progress = std::function<TimePoint(const Operation* wanted)>;
  // What only the group's own thread does. May unlock meanwhile. Returns when to be called again at the latest.
  using Upkeep = std::function<TimePoint(Lock&)>;

  // `patience`: how long a thread that waits looks at the descriptors before it sleeps on them, where that helps.
  Driver(const EventFd& wake, const std::vector<int>& descriptors, std::chrono::nanoseconds patience, Progress progress,
         Upkeep upkeep);

  // Guards everything of the group.
  std::mutex& mutex() { return mutex_; }

  // Waits until the operation is done or the deadline has passed.
  void wait(Lock& lock, Operation& operation, TimePoint deadline);
  // To be called, locked, after anything but the driver has moved operations on: they may be what the driver waits for,
  // and `due` is when progress has to be made at the latest.
  void changed(TimePoint due = TimePoint::max());
  bool driving() const { return driving_; }
  // Makes the group's thread do its upkeep now. Locked.
  void call_thread();
  // The descriptors are about to be closed. Only within progress.
  void forget_descriptors() { polled_.resize(1); }

  // The body of the group's thread, until stop().
  void run();
  void stop();
  // For whoever is alone with the group: sleeps until something happens or the time has come, then makes progress.
  TimePoint step(Lock& lock, TimePoint until);

 private:
  void drive(Lock& lock, Operation* operation, TimePoint deadline);
  void stand_by(Lock& lock, TimePoint due);
  void sleep(Lock& lock, TimePoint until);
  // On the descriptors, not locked; true if one of them is readable.
  bool poll(TimePoint until);
  void pass_on();

  const EventFd& wake_;
  std::vector<pollfd> polled_;  // wake_ first
  sdk::SpinPolicy spin_policy_;
  const Progress progress_;
  const Upkeep upkeep_;

  std::mutex mutex_;
  bool driving_ = false;
  bool thread_drives_ = false;
  bool sleeping_ = false;  // the driver, on the descriptors
  TimePoint sleeping_until_;
  Operation* driven_for_ = nullptr;              // what the driver waits for; null for the group's thread
  uint64_t drives_ = 0;                          // by waiting threads
  std::list<std::condition_variable*> waiting_;  // threads that sleep until done or until they may drive
  std::condition_variable thread_turn_;
  bool parked_ = false;     // the group's thread leaves the driving to others until told
  bool attention_ = false;  // upkeep is wanted
  bool stopping_ = false;
};

}  // namespace backplane::zmq_plugin
