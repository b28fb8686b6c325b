// SPDX-License-Identifier: Apache-2.0
//
// What the operations of a group share, and how a thread waits for one. MPI moves data only inside its calls, so a
// waiting thread polls; otherwise the progress thread does. By default MPI never touches memory of the program: an
// operation copies to or from memory of the plugin, which outlives it if it is aborted (abandoned.hpp). With the option
// `direct` MPI works on the program's memory, which the program gets back when MPI has completed the request; the
// process ends if that takes too long.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "backplane/abi/ext/reduce.h"
#include "backplane/base/deadline.hpp"
#include "backplane/sdk/block.hpp"
#include "backplane/sdk/first_failure.hpp"
#include "backplane/sdk/sdk.hpp"
#include "backplane/sdk/spin_policy.hpp"
#include "world.hpp"

namespace backplane::mpi {

// What the waits of a group know of the time that operations and calls of MPI take. A sleeping thread finds the end of
// its operation late, because MPI wakes nobody.
class PollTime {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // Longer than a message of 1 MiB takes within a host.
  static constexpr std::chrono::microseconds kMost{250};

  // How long a wait polls before it yields or sleeps: longer where operations have ended within that time.
  Duration limit() const { return Duration(limit_.load(std::memory_order_relaxed)); }
  // A wait has polled for at least the limit, and taken so long in all.
  void learn(Duration wait) {
    limit_.store(wait <= kMost ? Duration(kMost).count() : limit_.load(std::memory_order_relaxed) / 2,
                 std::memory_order_relaxed);
  }
  // Whether a call of MPI that took so long has moved data. The quickest ones have not: about 0.1 us, with sockets 1
  // us.
  bool is_step(Duration call) {
    constexpr int kTimes = 4;
    Duration::rep quickest = quickest_.load(std::memory_order_relaxed);
    if (call.count() < quickest) quickest_.store(quickest = call.count(), std::memory_order_relaxed);
    return call > std::max<Duration>(kStep, kTimes * Duration(quickest));
  }

 private:
  static constexpr std::chrono::microseconds kStep{5};

  std::atomic<Duration::rep> limit_ = 0;
  std::atomic<Duration::rep> quickest_ = Duration(std::chrono::seconds(1)).count();  // unknown
};

struct GroupState {
  World& world;
  const int32_t rank;
  const int32_t world_size;
  const Comm user;      // collectives, and messages with tags of the program
  const Comm internal;  // messages with tags of the core
  const Comm own;       // payloads and exchanges (wire.hpp)
  // How long an operation that is given up waits until MPI returns the program's memory. 0: MPI has copies.
  const std::chrono::nanoseconds direct;
  sdk::FirstFailure failure = {};
  std::shared_ptr<sdk::BlockPool> pool = nullptr;
  const bp_reduce_api* reduce = nullptr;  // of the core; NULL: it has none
  std::atomic<uint32_t> payloads = 0;     // announced so far
  // How long a wait yields between polls since MPI has last moved data. A peer that combines or copies 16 MiB in one
  // call takes 4 ms.
  base::SpinPolicy spin{std::chrono::milliseconds(10)};
  PollTime poll_time = {};

  Api& api() const { return world.api(); }
  // Whether MPI works on the program's memory of this size. Copies of small buffers cost nothing.
  bool uses_directly(uint64_t bytes) const { return direct.count() > 0 && bytes > Copy::kInline; }
  // A failure that MPI has reported, with the lost rank if MPI knows it.
  sdk::Failure with_rank(const sdk::Failure& failure) const;
};

class Operation : public sdk::Work {
 public:
  Operation(GroupState& group, uint32_t kind) : group_(group), kind_(kind) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Has the progress thread advance the operation. Until then it belongs to one thread.
  void share();
  bool wait(int64_t timeout_ns) final;
  void cancel() noexcept final { cancelled_ = true; }
  bool on_end(sdk::Notice notice) final;

 protected:
  // Whether the operation is complete; its output is then written. Throws if it failed. With the mutex held.
  virtual bool advance() = 0;
  enum class GivenUp {
    kYes,       // the requests are abandoned
    kNotYet,    // MPI uses memory of the program: the operation must advance until it is complete
    kCompleted  // it was complete, as advance says
  };
  // Gives up what is in flight, if anything is. With the mutex held.
  virtual GivenUp give_up() noexcept = 0;
  // For destructors of derived classes, at their begin.
  void end_now() noexcept;

  GroupState& group_;

 private:
  friend class Progress;

  // An operation that has failed, while MPI uses memory of the program.
  struct Ending {
    sdk::Failure why;
    base::Deadline deadline;  // then the process ends
  };

  // For the progress thread, with the mutex held. kNone: it has ended.
  Progress::Need advance_unwaited() noexcept;
  // Advances the operation. Returns whether it is done. Throws if it failed.
  bool poll();
  void poll_once();  // with the mutex held
  bool wait_long(int64_t timeout_ns);
  void stop(const sdk::Failure& why);
  void settle(std::optional<sdk::Failure> failure);
  [[noreturn]] void end_process(const std::string& why) const;

  const uint32_t kind_;
  bool is_shared_ = false;  // set before other threads know the operation
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;  // below, and advance; once shared
  bool ended_ = false;
  std::optional<sdk::Failure> failure_;
  std::optional<Ending> ending_;
  sdk::Notice notice_;
  std::list<Operation*>::iterator position_;  // in the list of Progress, whose mutex guards it
  bool is_listed_ = false;                    // likewise
};

// Starts an operation. NULL: it was synchronous, and is complete.
template <typename Kind>
std::unique_ptr<sdk::Work> perform(GroupState& group, const bp_op& op) {
  if ((op.flags & BP_OP_SYNC) == 0) {
    auto operation = std::make_unique<Kind>(group, op);
    operation->share();
    return operation;
  }
  Kind operation(group, op);
  if (!operation.wait(op.timeout_ns)) throw sdk::timed_out(op);
  return nullptr;
}

}  // namespace backplane::mpi
