// SPDX-License-Identifier: Apache-2.0
//
// The operations of a group: checks an operation, records it, and submits it to the agent that serves its memory, or
// performs it by a schedule over that agent's sends and receives.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "backplane/base/executor.hpp"
#include "group/in_flight.hpp"

namespace backplane::core {

class Group;
class NativeRequest;
class TaskRequest;
class Watchdog;

class Operations {
 public:
  // The requests keep `group`, which owns this object.
  explicit Operations(Group& group);
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  // Performs an operation and waits for it.
  void run(const bp_op& op);
  // Performs a send or recv whose tag 0 is replaced by an internal tag.
  void run_with_tag(const bp_op& op, uint64_t tag);
  // Starts all operations or, if it throws, none. `unpack` (may be empty) is called when an operation is done, before
  // its request is settled.
  std::vector<std::shared_ptr<Request>> submit(const bp_op* const* ops, size_t count,
                                               const std::function<void()>& unpack = {});
  // A new number for an object that this rank sends.
  uint64_t next_object() { return objects_.fetch_add(1, std::memory_order_relaxed) & ((UINT64_C(1) << 48) - 1); }

  const std::shared_ptr<Watchdog>& watchdog() const { return watchdog_; }

  // For requests. Performs an operation on the serial executor. Throws core::Error.
  void perform_task(const Operation& operation);
  // Waits for a backend's work until the deadline. Then ends it, by aborting the group if necessary, and returns
  // BP_TIMEOUT. Never returns BP_AGAIN. Does not release the work.
  int32_t finish_work(const Operation& operation, bp_work* work, Deadline deadline, bp_error* err);
  // Records the end of a request.
  void finish(Request& request, int32_t status);

  // For the end of the group. Returns true if all requests have ended.
  bool cancel() { return in_flight_.cancel_all(); }
  // Called after `cancel`. Waits until all requests have ended.
  void close();

 private:
  // Checks and completes an operation, and chooses its agent.
  Operation prepare(const bp_op& given) const;
  Operation prepare_unprobed(const bp_op& given) const;
  // Assigns the sequence number and records the start.
  void record_start(Operation* operation, uint64_t flags);
  void execute(Operation* operation);
  void perform(const Operation& operation);
  std::shared_ptr<Request> start(Operation operation, const std::function<void()>& unpack);
  void start_native(const std::shared_ptr<NativeRequest>& request);
  void start_task(const std::shared_ptr<TaskRequest>& request);
  void cancel_and_wait(const std::vector<std::shared_ptr<Request>>& requests);

  Group& group_;
  std::atomic<uint64_t> objects_ = 0;
  RequestsInFlight in_flight_;
  const std::shared_ptr<Watchdog> watchdog_;
  base::Executor executor_{1};  // runs asynchronous collectives that need a schedule, in the order of submission
};

}  // namespace backplane::core
