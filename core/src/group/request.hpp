// SPDX-License-Identifier: Apache-2.0
//
// An operation that was started and not waited for.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backplane/abi/process_group.h"
#include "backplane/base/grace.hpp"
#include "deadline.hpp"
#include "error.hpp"
#include "group/validate.hpp"

namespace backplane::core {

class Agent;
class Group;

// While it lives, this thread runs a callback of the program. It may be one that the end of a group waits for, or that
// makes other operations get on.
class InCallback {
 public:
  InCallback() { ++depth_; }
  ~InCallback() { --depth_; }
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;

  static bool active() { return depth_ > 0; }
  // Throws BP_INVALID if it does; "end a group".
  static void refuse(const char* what) {
    if (active()) fail(BP_INVALID, "a callback of a request must not {}; let another thread do it", what);
  }

 private:
  static inline thread_local int depth_ = 0;
};

// Any thread may call anything; only one at a time drives the backend.
class Request : public std::enable_shared_from_this<Request> {
 public:
  virtual ~Request() = default;

  // True: done. False: in flight. Throws what it failed with, the same each time. Does not block.
  bool test();
  // Waits until `deadline` or the operation's own, whichever is sooner. False: still in flight. An interruption by the
  // program cancels the operation.
  bool wait(Deadline deadline);
  // Has `ended` called once, when the operation has ended or at once, with what it failed with or NULL. Returns a
  // number for forget_callback, 0 if it was called. It must neither throw nor wait for operations.
  using Ended = std::function<void(const Error* error)>;
  uint64_t on_end(Ended ended);
  // Not called any more, unless it is being called.
  void forget_callback(uint64_t number);
  // When the group's watchdog has to see to it.
  virtual Deadline overdue() const = 0;
  virtual const std::string& group_name() const = 0;
  bool settled();
  // Returns when what is put into `stream` from now on runs after the operation: which the stream itself waits for
  // where the backend can have it do so, and the host elsewhere. Throws what it failed with by now.
  virtual void wait_on_stream(void*) { wait(Deadline::never()); }
  // Asks it to end with BP_CANCELLED.
  virtual void cancel() = 0;
  // Of a recv that is done.
  virtual bp_result result() { return {sizeof(bp_result), -1, 0, 0}; }

 protected:
  // Tries to reach the terminal state until `deadline` (one that has passed: only looks) and calls settle when it is
  // reached.
  virtual void advance(Deadline deadline) = 0;
  void settle(std::optional<Error> error);
  // Sees to it that the end is noticed although nobody waits.
  virtual void watch() = 0;

 private:
  // The answer, if there is one.
  bool answer();

  std::mutex state_mutex_;  // held shortly
  bool settled_ = false;
  bool watched_ = false;
  std::optional<Error> error_;
  std::vector<std::pair<uint64_t, Ended>> callbacks_;
  uint64_t last_callback_ = 0;
};

// The lowest index of a request that has ended, failed ones too, or as many as there are: none by the deadline.
size_t wait_any(const std::vector<std::shared_ptr<Request>>& requests, Deadline deadline);

// What a request remembers of its operation; the buffers stay the caller's, everything else is copied.
struct Started {
  std::shared_ptr<Group> group;
  Agent* agent = nullptr;
  bool native = false;  // performed by the backend itself
  ValidOp valid;
  uint64_t number = 0;  // in the recorder
  // recv: where the backend reports; the caller's own result, if there is one, is written when the request is settled.
  std::shared_ptr<bp_result> result;
  bp_result* callers_result = nullptr;
  Deadline deadline = Deadline::never();
  std::function<void()> deliver;  // moves the result to the caller's buffers; may be empty
};

// An operation that the backend itself performs.
class NativeRequest final : public Request {
 public:
  // `work` NULL: it is done already.
  NativeRequest(Started started, bp_work* work);
  void wait_on_stream(void* stream) override;
  void cancel() override;
  bp_result result() override;
  Deadline overdue() const override { return started_.deadline; }
  const std::string& group_name() const override;

 private:
  void advance(Deadline deadline) override;
  void watch() override;
  bool asks_for_notice();
  // From true on until leave, nobody else drives the backend for this request. False: somebody else still does.
  bool take_over(Deadline deadline);
  void leave();
  // From true on until leave_order, the work is not released. False: its end is known, or nothing orders streams.
  bool enter_order();
  void leave_order();
  void await_orders();
  bool order_by_backend(void* stream);
  void end(int32_t status, const bp_error& err);
  void hand_out_result() const;
  void drive(Deadline deadline);

  const Started started_;
  std::mutex driver_mutex_;
  std::condition_variable driver_left_;
  bool driven_ = false;    // a thread is in the backend's work_wait; guarded by driver_mutex_, as the two below
  int ordering_ = 0;       // threads that are in the backend's wait_on_stream
  bool is_over_ = false;   // none may go there any more
  std::mutex work_mutex_;  // keeps cancel away from a work that is being released; held shortly
  bp_work* work_;
};

// A collective that the core performs on the group's own thread.
class TaskRequest final : public Request {
 public:
  explicit TaskRequest(Started started);
  void cancel() override;
  Deadline overdue() const override { return started_.deadline.later(base::grace::kOverdueTask); }
  const std::string& group_name() const override;
  // Performs it; called once, by the group's thread.
  void perform();

 private:
  void advance(Deadline deadline) override;
  void watch() override {}
  void count_queueing();

  Started started_;
  std::vector<uint64_t> in_counts_;
  std::vector<uint64_t> out_counts_;
  alignas(16) std::byte scalar_[16];
  std::mutex done_mutex_;
  std::condition_variable done_changed_;
  bool done_ = false;
};

}  // namespace backplane::core
