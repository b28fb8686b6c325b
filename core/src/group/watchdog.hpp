// SPDX-License-Identifier: Apache-2.0
//
// A thread per group that ends operations at their deadline, calls the callbacks of operations that have ended, and
// handles failures that a backend reports, while no thread of the program waits. It is made when first needed.
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
  // Both must live until stop.
  Watchdog(RequestsInFlight& requests, Failures& failures) : requests_(requests), failures_(failures) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The functions below may be called on any thread. After stop they do nothing.

  // Ends overdue requests at this deadline.
  void expect(Deadline deadline);
  // Throws BP_RESOURCE if there is no thread for `wake`.
  void prepare();
  // Tests this request until it has ended: its backend gives no notice.
  void poll(const std::weak_ptr<Request>& request);
  // Tests this request once: it has ended.
  void wake(const std::weak_ptr<Request>& request) noexcept;
  // A backend has reported that the group failed. Only the first report counts.
  void fail(const Error& why);

  // Ends the thread. Called before the group ends, possibly by a callback of the program on the thread itself.
  void stop();

 private:
  void start();  // with mutex_ held
  void run();
  void run_once(std::unique_lock<std::mutex>& lock);
  static bool test(const std::shared_ptr<Request>& request);

  RequestsInFlight& requests_;  // not after stop, as the next
  Failures& failures_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  Deadline next_ = Deadline::never();           // of the operations in flight, or earlier
  std::vector<std::weak_ptr<Request>> ready_;   // ended
  std::vector<std::weak_ptr<Request>> polled_;  // to be tested
  int64_t pause_ns_ = 0;                        // between two tests
  bool has_failed_ = false;
  std::optional<Error> failure_;  // reported, not yet handled
  std::thread thread_;
};

}  // namespace backplane::core
