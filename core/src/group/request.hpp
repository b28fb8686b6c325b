// SPDX-License-Identifier: Apache-2.0
//
// An operation that was started and not waited for.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backplane/abi/process_group.h"
#include "deadline.hpp"
#include "error.hpp"
#include "group/validate.hpp"

namespace backplane::core {

class Agent;
class Group;

// Any thread may call anything; only one at a time drives the backend.
class Request {
 public:
  virtual ~Request() = default;

  // True: done. False: in flight. Throws what it failed with, the same each time. Does not block.
  bool test();
  // Waits until `deadline` or the operation's own, whichever is sooner. False: still in flight.
  bool wait(Deadline deadline);
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
  bool settled();

 private:
  // The answer, if there is one.
  bool answer();

  std::mutex state_mutex_;  // held shortly
  bool settled_ = false;
  std::optional<Error> error_;
};

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
};

// An operation that the backend itself performs.
class NativeRequest final : public Request {
 public:
  // `work` NULL: it is done already.
  NativeRequest(Started started, bp_work* work);
  void wait_on_stream(void* stream) override;
  void cancel() override;
  bp_result result() override;

 private:
  void advance(Deadline deadline) override;
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
  // Performs it; called once, by the group's thread.
  void perform();

 private:
  void advance(Deadline deadline) override;
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
