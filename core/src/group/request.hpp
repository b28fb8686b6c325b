// SPDX-License-Identifier: Apache-2.0
//
// An operation that was started and not waited for.
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

class Operations;

// While it lives, this thread runs a callback of the program, which the end of a group may wait for.
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

// Any thread may call anything; one thread at a time drives the backend. A request keeps its group in memory. The
// buffers stay the caller's.
class Request : public std::enable_shared_from_this<Request> {
 public:
  // `unpack` (may be empty) moves the result to the caller's buffers before the request is settled.
  Request(std::shared_ptr<Operations> operations, Operation operation, std::function<void()> unpack);
  virtual ~Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // True: done. False: in flight. Throws the operation's error, the same each time. Does not block.
  bool test();
  // Waits until `deadline` or the operation's own, whichever is sooner. False: still in flight. An interruption by the
  // program cancels the operation.
  bool wait(Deadline deadline);
  // Calls `ended` once, when the operation has ended or at once, with its error or NULL. Returns a number for
  // remove_callback, 0 if it was called. `ended` must neither throw nor wait for operations.
  using Ended = std::function<void(const Error* error)>;
  uint64_t on_end(Ended ended);
  // Prevents a call that has not begun.
  void remove_callback(uint64_t number);
  // Has it ended?
  bool settled();
  // Returns when work that is put into `stream` from now on runs after the operation. The stream waits where the
  // backend supports that, else the host. Throws the operation's error, if it is known.
  virtual void wait_on_stream(void*) { wait(Deadline::never()); }
  // Asks it to end with BP_CANCELLED.
  virtual void cancel() = 0;
  virtual bool cancel_breaks_group() const { return false; }
  // Of a recv that is done.
  virtual bp_result result() { return {sizeof(bp_result), -1, 0, 0}; }
  // When the group's watchdog must test it.
  virtual Deadline watchdog_deadline() const = 0;
  const Operation& operation() const { return operation_; }
  const std::string& group_name() const;

 protected:
  // Tries to end the operation until `deadline` (one that has passed: only looks), and calls settle when it has.
  virtual void advance(Deadline deadline) = 0;
  // Makes sure that the end is noticed although no thread waits.
  virtual void request_notice() = 0;
  void settle(std::optional<Error> error);
  // Unpacks the result, or keeps the memory that an agent with a hung call may still use.
  void unpack(bool failed) const;

  const std::shared_ptr<Operations> operations_;
  Operation operation_;
  const Deadline deadline_;

 private:
  // Returns or throws the outcome, if there is one.
  bool outcome();

  const std::function<void()> unpack_;
  std::mutex state_mutex_;  // guards what follows; held shortly
  bool settled_ = false;
  bool has_notice_ = false;  // requested
  std::optional<Error> error_;
  std::vector<std::pair<uint64_t, Ended>> callbacks_;
  uint64_t last_callback_ = 0;
};

// The lowest index of a request that has ended or failed; requests.size() if none has by the deadline.
size_t wait_any(const std::vector<std::shared_ptr<Request>>& requests, Deadline deadline);

}  // namespace backplane::core
