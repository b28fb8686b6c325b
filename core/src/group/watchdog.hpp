// SPDX-License-Identifier: Apache-2.0
//
// A thread per group, started at its first use, that acts while no thread of the program waits: it ends operations at
// their deadlines, calls the callbacks of operations that have ended, and handles failures that a backend reports.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "deadline.hpp"
#include "error.hpp"
#include "group/failures.hpp"
#include "group/in_flight.hpp"

namespace backplane::core {

class Watchdog : public std::enable_shared_from_this<Watchdog> {
 public:
  // Both must outlive the call of stop.
  Watchdog(RequestsInFlight& requests, Failures& failures) : requests_(requests), failures_(failures) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // These functions may be called on any thread. They do nothing after stop.

  // Ends overdue requests at this deadline.
  void expect(Deadline deadline);
  // Starts the thread for later calls of notify_ended. Throws BP_RESOURCE.
  void ensure_thread();
  // Tests the request repeatedly until it has ended.
  void poll(const std::weak_ptr<Request>& request);
  // Tests the request once. Its backend calls this when the operation has ended.
  void notify_ended(const std::weak_ptr<Request>& request) noexcept;
  // Handles a failure of the group that a backend reports. Only the first report counts.
  void fail(const Error& why);

  // Ends the thread. Called before the group ends, possibly by a callback on this thread.
  void stop();

 private:
  void start();  // with mutex_ held
  void run();
  void run_once(std::unique_lock<std::mutex>& lock);
  static bool test(const std::shared_ptr<Request>& request);

  RequestsInFlight& requests_;  // not used after stop, like failures_
  Failures& failures_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  Deadline next_ = Deadline::never();           // not after the first deadline of an operation in flight
  std::vector<std::weak_ptr<Request>> ended_;   // to be tested once
  std::vector<std::weak_ptr<Request>> polled_;  // to be tested until they have ended
  int64_t pause_ns_ = 0;                        // between two tests
  bool has_failed_ = false;
  std::optional<Error> failure_;  // reported, not yet handled
  std::thread thread_;
};

}  // namespace backplane::core
