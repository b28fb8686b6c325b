// SPDX-License-Identifier: Apache-2.0
//
// Calls a function once per tick of a heartbeat, on the thread that runs the io_context. Not synchronised.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include "liveness/heartbeat.hpp"

namespace backplane::core {

class WatchTimer {
 public:
  using Clock = std::chrono::steady_clock;
  // `late`: this process was suspended since the last call. Returns whether to continue.
  using Watch = std::function<bool(Clock::time_point now, bool late)>;

  WatchTimer(boost::asio::io_context& io, const Heartbeat& heartbeat, Watch watch)
      : timer_(io), heartbeat_(heartbeat), watch_(std::move(watch)) {}

  // The first call follows after a tick. Call only while the timer does not run.
  void start() {
    suspension_.restart(Clock::now());
    schedule();
  }

 private:
  void schedule() {
    timer_.expires_after(std::chrono::nanoseconds(heartbeat_.tick_ns()));
    timer_.async_wait([this](const boost::system::error_code& stopped) {
      if (!stopped && call()) schedule();
    });
  }

  bool call() {
    const auto now = Clock::now();
    try {
      return watch_(now, suspension_.was_suspended(now, heartbeat_));
    } catch (const std::exception&) {
      return true;  // out of memory for one client: the next call looks at the others
    }
  }

  boost::asio::steady_timer timer_;
  const Heartbeat heartbeat_;
  const Watch watch_;
  SuspensionDetector suspension_;
};

}  // namespace backplane::core
