// SPDX-License-Identifier: Apache-2.0
//
// Waits on a condition variable until a Deadline; threads that receive no signals.
#pragma once

#include <fmt/format.h>
#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "backplane/base/signals.hpp"
#include "deadline.hpp"
#include "error.hpp"
#include "interrupt.hpp"

namespace backplane::core {

// Waits once; false if the deadline has passed. Spurious wake-ups occur. Throws BP_CANCELLED, with the lock held, if
// the program interrupts this thread.
inline bool wait_on(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, const Deadline& deadline) {
  const Deadline until = Interruptible::next_check(deadline);
  if (until.infinite()) {
    condition.wait(lock);
    return true;
  }
  if (condition.wait_until(lock, until.at()) == std::cv_status::no_timeout) return true;
  if (Interruptible::active()) {
    lock.unlock();
    const bool is_interrupted = Interruptible::interrupted();
    lock.lock();
    if (is_interrupted) Interruptible::refuse();
  }
  return !deadline.passed();
}

// Waits until `ready` returns true; false if it returns false at the deadline. Throws likewise.
template <typename Ready>
bool wait_on(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, const Deadline& deadline,
             Ready ready) {
  while (!ready()) {
    if (!wait_on(condition, lock, deadline)) return ready();
  }
  return true;
}

// The deadline, but at least `ns` from now: a call whose deadline has passed still checks once.
inline Deadline at_least(const Deadline& deadline, int64_t ns) {
  const Deadline little = Deadline::after(ns);
  return deadline.at() < little.at() ? little : deadline;
}

// Starts a thread on which no signal handler of the program ever runs. `name` has at most 15 characters.
template <typename Body>
std::thread start_quiet_thread(const char* name, Body&& body) {
  const base::SignalsBlocked blocked;
  try {
    std::thread thread(std::forward<Body>(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& e) {
    const int code = e.code().value();
    throw Error(BP_RESOURCE, fmt::format("cannot start the thread {}: {}", name, std::generic_category().message(code)),
                -1, code);
  }
}

}  // namespace backplane::core
