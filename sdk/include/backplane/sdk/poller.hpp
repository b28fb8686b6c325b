// SPDX-License-Identifier: Apache-2.0
//
// A progress thread for libraries that must be polled, so that operations progress without calls
// (BP_BACKEND_AUTONOMOUS). Linux only. The author writes one function:
//
//     bool progress(sdk::Poller::Sleep& sleep) {
//       bool busy = library_progress(worker_) > 0;      // true: progress is called again at once
//       sleep.watch(library_event_fd(worker_), POLLIN);  // false: the thread sleeps until one is ready ...
//       return busy;                                     // ... or until wake()
//     }
//     sdk::Poller poller_{[this](auto& sleep) { return progress(sleep); }, [this](const auto& failure) { ... }};
//
// Without a watched descriptor the thread pauses between calls: briefly at first, then longer while it is idle, at most
// kLongestPause. wake() ends the pause. An idle group then costs a thousand short calls per second; with a descriptor
// it costs none.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "backplane/base/event_fd.hpp"
#include "worker.hpp"

namespace backplane::sdk {

class Poller {
 public:
  static constexpr int64_t kShortestPause = 20'000;    // nanoseconds
  static constexpr int64_t kLongestPause = 1'000'000;  // nanoseconds

  // The conditions that end the sleep after one call of progress.
  class Sleep {
   public:
    // Until the descriptor is ready for `events` (POLLIN, POLLOUT).
    void watch(int fd, short events) { fds_.push_back({fd, events, 0}); }
    // At most this long, in nanoseconds.
    void at_most(int64_t nanoseconds) {
      if (limit_ < 0 || nanoseconds < limit_) limit_ = nanoseconds;
    }
    // Only wake() ends it: for a library that has nothing in flight.
    void until_woken() { until_woken_ = true; }

   private:
    friend class Poller;
    std::vector<pollfd> fds_;
    int64_t limit_ = -1;
    bool until_woken_ = false;
  };

  using Progress = std::function<bool(Sleep& sleep)>;  // true: something happened, call again at once
  // Called on the thread when progress throws: fails the group. Called again if it throws itself (out of memory).
  using Broken = std::function<void(const Failure&)>;

  // Starts the thread, which blocks all signals. Throws if no thread can be started. Declare the Poller as the last
  // member: progress is called from now on and uses the other members.
  Poller(Progress progress, Broken broken) : progress_(std::move(progress)), broken_(std::move(broken)) {
    bp_error_init(&why_);
    sleep_.fds_.reserve(1);  // running out of memory on the thread would end the process
    thread_ = start_thread([this] { run(); });
  }
  ~Poller() { stop(); }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Makes the thread call progress soon, even if no watched descriptor is ready. Call it after each submit, and in
  // abort. Any thread, cheap, does not block.
  void wake() noexcept {
    if (awake_.exchange(true)) return;
    event_.raise();
  }

  // Ends the thread: progress is no longer called once this has returned. Later calls have no effect. Must not be
  // called from progress. Blocks as long as one call of progress.
  void stop() {
    const std::lock_guard lock(stop_mutex_);
    stopping_.store(true);
    wake();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    int64_t pause = kShortestPause;
    Sleep& sleep = sleep_;
    for (;;) {
      // The order matters: drain the descriptor, clear the flag, then call progress. A wake that finds the flag set
      // does not write, but the progress call below sees its cause. A later wake ends the next sleep.
      event_.clear();
      awake_.store(false);
      if (stopping_.load()) return;
      sleep.fds_.assign(1, {event_.get(), POLLIN, 0});
      sleep.limit_ = -1;
      sleep.until_woken_ = false;
      if (call(sleep)) {
        pause = kShortestPause;
        continue;
      }
      if (sleep.fds_.size() == 1 && sleep.limit_ < 0 && !sleep.until_woken_) {
        sleep.at_most(pause);
        pause = std::min(2 * pause, kLongestPause);
      }
      rest(sleep);
    }
  }

  bool call(Sleep& sleep) {
    bool busy = false;
    if (!is_broken_) {
      const int32_t status = guarded(&why_, [this, &sleep, &busy] {
        busy = progress_(sleep);
        return BP_OK;
      });
      if (status == BP_OK) return busy;
      is_broken_ = true;
    }
    if (!is_told_) {
      is_told_ = guarded(nullptr, [this] {
                   broken_(Failure(why_));
                   return BP_OK;
                 }) == BP_OK;
    }
    if (is_told_) {
      sleep.until_woken();
    } else {
      sleep.at_most(kLongestPause);
    }
    return false;
  }

  static void rest(Sleep& sleep) {
    timespec limit{};
    limit.tv_sec = sleep.limit_ / 1'000'000'000;
    limit.tv_nsec = sleep.limit_ % 1'000'000'000;
    const int ready = ::ppoll(sleep.fds_.data(), static_cast<nfds_t>(sleep.fds_.size()),
                              sleep.limit_ < 0 ? nullptr : &limit, nullptr);
    // ENOMEM and the like: poll fails for a while. Pause instead of spinning.
    if (ready < 0 && errno != EINTR) std::this_thread::yield();
  }

  const Progress progress_;
  const Broken broken_;
  base::EventFd event_;
  std::atomic<bool> awake_ = false;
  std::atomic<bool> stopping_ = false;
  Sleep sleep_;  // used by the thread only, like the next three
  bool is_broken_ = false;
  bool is_told_ = false;
  bp_error why_;
  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace backplane::sdk
