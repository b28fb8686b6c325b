// SPDX-License-Identifier: Apache-2.0
//
// An asynchronous operation.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backplane/abi/process_group.h"
#include "deadline.hpp"
#include "error.hpp"
#include "group/operation.hpp"

namespace backplane::core {

class Group;

// Marks the thread as running a callback of the program. The end of a group may wait for callbacks.
class CallbackScope {
 public:
  CallbackScope() { ++depth_; }
  ~CallbackScope() { --depth_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  static bool active() { return depth_ > 0; }
  // Throws BP_INVALID in a callback. `action`: "end a group".
  static void refuse(const char* action) {
    if (active()) fail(BP_INVALID, "a callback of a request must not {}; let another thread do it", action);
  }

 private:
  static inline thread_local int depth_ = 0;
};

// All functions may be called on any thread; one thread at a time drives the backend. A request keeps its group in
// memory. The buffers stay the caller's.
class Request : public std::enable_shared_from_this<Request> {
 public:
  // `unpack` (may be empty) moves the result to the caller's buffers before the request is settled.
  Request(std::shared_ptr<Group> group, Operation operation, std::function<void()> unpack);
  virtual ~Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Whether the operation is done. Throws its error, the same each time. Does not block.
  bool test();
  // Waits until `deadline` or the operation's own, whichever is sooner. False: in flight. An interruption by the
  // program cancels the operation.
  bool wait(Deadline deadline);
  // Calls `ended` once, when the operation has ended (at once if it has), with its error or NULL. Returns a number for
  // remove_callback, 0 if `ended` was called at once. `ended` must neither throw nor wait for operations.
  using Ended = std::function<void(const Error* error)>;
  uint64_t on_end(Ended ended);
  // Removes a callback unless its call has begun.
  void remove_callback(uint64_t number);
  // Whether the operation has ended, with or without an error.
  bool settled();
  // Makes `stream` wait for the operation: work that is enqueued to it later runs after the operation. The host waits
  // if the backend does not support streams. Throws the operation's error if it is known.
  virtual void wait_on_stream(void*) { wait(Deadline::never()); }
  // Requests that the operation end with BP_CANCELLED.
  virtual void cancel() = 0;
  virtual bool cancel_breaks_group() const { return false; }
  // The result of a recv that is done.
  virtual bp_result result() { return {sizeof(bp_result), -1, 0, 0}; }
  // The time at which the group's watchdog tests the request.
  virtual Deadline watchdog_deadline() const = 0;
  const Operation& operation() const { return operation_; }
  const std::string& group_name() const;

 protected:
  // Drives the operation until it ends, then calls settle, or until `deadline` (if it has passed: checks once).
  virtual void advance(Deadline deadline) = 0;
  // Arranges for callbacks to be called although no thread waits.
  virtual void request_notice() = 0;
  void settle(std::optional<Error> error);
  // Calls `unpack` unless the operation failed. Never frees it if a hung call into the agent may still use its memory.
  void unpack(bool failed) const;

  const std::shared_ptr<Group> group_;
  Operation operation_;
  const Deadline deadline_;

 private:
  // Whether the operation is done. Throws its error.
  bool outcome();

  const std::function<void()> unpack_;
  std::mutex state_mutex_;  // guards the fields below; held briefly
  bool settled_ = false;
  bool notice_requested_ = false;
  std::optional<Error> error_;
  std::vector<std::pair<uint64_t, Ended>> callbacks_;
  uint64_t last_callback_ = 0;
};

// Waits for a request to end. Returns the lowest index of one that has, requests.size() at the deadline.
size_t wait_any(const std::vector<std::shared_ptr<Request>>& requests, Deadline deadline);

}  // namespace backplane::core
