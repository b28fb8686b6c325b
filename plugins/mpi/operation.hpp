// SPDX-License-Identifier: Apache-2.0
//
// What the operations of a group share, and how a thread waits for one. MPI moves data only inside its calls, so a
// waiting thread polls; otherwise the progress thread does. MPI never touches memory of the program: every operation
// copies to or from memory of the plugin, which outlives it if it is aborted (abandoned.hpp).
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

#include "backplane/base/deadline.hpp"
#include "backplane/sdk/block.hpp"
#include "backplane/sdk/first_failure.hpp"
#include "backplane/sdk/sdk.hpp"
#include "backplane/sdk/spin_policy.hpp"
#include "world.hpp"

namespace backplane::mpi {

class Receives;

struct GroupState {
  World& world;
  const int32_t rank;
  const int32_t world_size;
  const Comm user;      // collectives, and messages with tags of the program
  const Comm internal;  // messages with tags of the core
  sdk::FirstFailure failure;
  std::shared_ptr<sdk::BlockPool> pool;
  std::shared_ptr<Receives> receives;
  base::SpinPolicy spin{std::chrono::milliseconds(2)};

  Api& api() const { return world.api(); }
  // A failure that MPI has reported, with the lost rank if MPI knows it.
  sdk::Failure with_rank(const sdk::Failure& failure) const;
};

class Operation : public sdk::Work {
 public:
  explicit Operation(GroupState& group) : group_(group) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool wait(int64_t timeout_ns) final;
  void cancel() noexcept final { cancelled_ = true; }
  bool on_end(sdk::Notice notice) final;

 protected:
  // Whether the operation is complete; its output is then written. Throws if it failed. With the mutex held.
  virtual bool advance() = 0;
  // Gives up what is in flight, if anything is: its requests are abandoned. Called at most once, last.
  // With the mutex held.
  virtual void give_up() noexcept = 0;
  // For destructors of derived classes, at their begin.
  void end_now() noexcept;

  GroupState& group_;

 private:
  friend class Progress;

  // For the progress thread, with the mutex held. kNone: it has ended.
  Progress::Need advance_unwaited(bool finds_messages) noexcept;
  // Advances the operation. Returns whether it is done. Throws if it failed.
  bool poll();
  void poll_once(bool finds_messages);  // with the mutex held
  void settle(std::optional<sdk::Failure> failure);

  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;  // below, and advance
  bool ended_ = false;
  std::optional<sdk::Failure> failure_;
  sdk::Notice notice_;
  std::list<Operation*>::iterator position_;  // in the list of Progress, whose mutex guards it
  bool is_listed_ = false;                    // likewise
};

}  // namespace backplane::mpi
