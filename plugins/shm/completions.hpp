// SPDX-License-Identifier: Apache-2.0
//
// Ends sends and receives: writes result and status, and gives the notice. An operation belongs to its waiter as soon
// as its status is final. Every caller holds the lock of Messages.
#pragma once

#include <map>
#include <utility>

#include "backplane/sdk/process_group.hpp"
#include "matcher.hpp"
#include "progress_thread.hpp"

namespace backplane::shm {

class Completions {
 public:
  // `membarrier`: sleeping threads execute the fence (peers.hpp). `progress_thread` may be constructed later.
  Completions(bool membarrier, ProgressThread& progress_thread)
      : membarrier_(membarrier), progress_thread_(progress_thread) {}

  // Lets the progress thread drive a pending operation. Throws BP_RESOURCE.
  void leave_in_flight(Operation& operation);
  // The notice is given when the operation ends. It must be pending and left in flight.
  void add_notice(Operation& operation, const sdk::Notice& notice);
  // A pending operation with a notice, or null.
  Operation* any_with_notice() const { return notices_.empty() ? nullptr : notices_.begin()->first; }

  void finish(Operation& operation) { end(operation, Operation::Status::kDone); }
  void fail(Operation& operation, const sdk::Failure& why);
  // Reports source, tag and size of a receive's message. Returns false if it is too long; the receive has failed then.
  bool fits(Operation& receive, int32_t source, uint64_t tag, uint64_t size);
  // Completes a receive with these bytes, or fails it if they are too many.
  void deliver(Operation& receive, int32_t source, uint64_t tag, const std::byte* data, uint64_t size);

  // Has this rank's sleeping threads woken when the lock is released, as after the end of an operation.
  void request_wake() { is_wake_due_ = true; }
  bool take_wake() { return std::exchange(is_wake_due_, false); }

 private:
  void end(Operation& operation, Operation::Status status);

  const bool membarrier_;
  ProgressThread& progress_thread_;
  std::map<Operation*, sdk::Notice> notices_;
  bool is_wake_due_ = false;
};

}  // namespace backplane::shm
