// SPDX-License-Identifier: Apache-2.0
//
// How a thread of the group waits for the sockets and for other threads.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "backplane/base/event_fd.hpp"
#include "backplane/sdk/spin_policy.hpp"
#include "options.hpp"

namespace backplane::zmq {

// When a timeout of the ABI ends; TimePoint::max() for none.
TimePoint deadline_after(int64_t timeout_ns);

// Limits a time to one day from now, so that clock arithmetic cannot overflow.
TimePoint bounded(TimePoint until);

// Polls the descriptors until the given time. Returns true if one of them is ready.
bool poll_until(std::vector<pollfd>& polled, TimePoint until);

// The sleep of one thread at a time. All functions are called with the group's mutex, which only the sleep releases.
class DescriptorSleep {
 public:
  // `poll`: how long it polls the descriptors before it sleeps on them, if its SpinPolicy permits.
  DescriptorSleep(const base::EventFd& wake, const std::vector<int>& descriptors, std::chrono::nanoseconds poll);

  // Returns when a descriptor is ready, after a wake, or at the given time.
  void sleep(std::unique_lock<std::mutex>& lock, TimePoint until, bool polls);
  // Ends the sleep if it would last longer than until `due`.
  void wake(TimePoint due = TimePoint::min());
  // The descriptors will be closed.
  void forget_descriptors() { polled_.resize(1); }

 private:
  const base::EventFd& wake_;
  std::vector<pollfd> polled_;  // wake_ first
  sdk::SpinPolicy spin_policy_;
  bool is_asleep_ = false;
  TimePoint until_;
};

}  // namespace backplane::zmq
