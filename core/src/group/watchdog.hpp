// SPDX-License-Identifier: Apache-2.0
//
// The thread of a group that sees to what nobody waits for: operations that reach their deadline, callbacks of
// operations that end, and failures that a backend reports. It is made when first needed.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "deadline.hpp"
#include "error.hpp"
#include "group/group.hpp"

namespace backplane::core {

class Group::Watchdog : public std::enable_shared_from_this<Group::Watchdog> {
 public:
  explicit Watchdog(Group& group) : group_(group) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Any thread, also after stop, when they do nothing. An operation has this deadline:
  void expect(Deadline deadline);
  // Throws BP_RESOURCE if there is no thread for `wake`.
  void prepare();
  // This request is to be tested until it has ended: its backend gives no notice.
  void poll(const std::weak_ptr<Request>& request);
  // This request has ended, and only has to be asked.
  void wake(const std::weak_ptr<Request>& request) noexcept;
  // The group has failed.
  void fail(const Error& why);

  // Before the group ends. From the thread itself, too, which a callback of the program's may be in.
  void stop();

 private:
  void start();  // with mutex_ held
  void run();
  void look(std::unique_lock<std::mutex>& lock);
  static bool ended(const std::shared_ptr<Request>& request);

  Group& group_;  // not after stop
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  Deadline next_ = Deadline::never();           // of the operations in flight, or earlier
  std::vector<std::weak_ptr<Request>> ready_;   // ended
  std::vector<std::weak_ptr<Request>> polled_;  // to be tested
  int64_t pause_ns_ = 0;                        // between two tests
  bool has_failed_ = false;                     // only the first report counts
  std::optional<Error> failure_;                // reported, not yet told to the group
  std::thread thread_;
};

}  // namespace backplane::core
