// SPDX-License-Identifier: Apache-2.0
//
// How the thread of the RPC agent waits for its sockets and for other threads. It polls the sockets for a while before
// it sleeps, because a reply often follows soon.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "backplane/base/event_fd.hpp"
#include "backplane/sdk/spin_policy.hpp"
#include "sleep.hpp"

namespace backplane::zmq {

class RpcSleep {
 public:
  // `poll`: how long it polls before it sleeps, if its SpinPolicy permits.
  explicit RpcSleep(std::chrono::nanoseconds poll) : poll_(poll), spin_policy_(poll) {}

  // Call before the thread starts.
  void add_descriptors(const std::vector<int>& descriptors) {
    for (const int descriptor : descriptors) polled_.push_back({descriptor, POLLIN, 0});
  }

  // Makes the thread look for work before it sleeps again. Any thread.
  void wake() {
    woken_ = true;
    wake_if_asleep();
  }
  // For work that `has_work` reports. Any thread.
  void wake_if_asleep() {
    if (asleep_) wake_.raise();
  }

  // On the thread: a message has arrived, so the next ones may follow soon.
  void note_busy() { poll_until_ = std::chrono::steady_clock::now() + poll_; }
  // On the thread: returns when a descriptor is ready, after a wake, or at the given time. At once if has_work().
  template <typename HasWork>
  void sleep(TimePoint until, const HasWork& has_work) {
    asleep_ = true;
    if (!woken_.exchange(false) && !has_work()) {
      const auto ready = [this] { return poll_until(polled_, {}); };
      if (!spin_policy_.poll(std::min(until, poll_until_), ready)) poll_until(polled_, until);
    }
    asleep_ = false;
    if (polled_[0].revents != 0) wake_.clear();
  }

 private:
  const std::chrono::nanoseconds poll_;
  base::EventFd wake_;
  std::atomic<bool> asleep_ = false;
  std::atomic<bool> woken_ = false;  // it must look for work before it sleeps
  // Used by the thread only.
  std::vector<pollfd> polled_ = {{wake_.get(), POLLIN, 0}};
  TimePoint poll_until_;
  sdk::SpinPolicy spin_policy_;
};

}  // namespace backplane::zmq
