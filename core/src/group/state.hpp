// SPDX-License-Identifier: Apache-2.0
//
// Whether a group is usable, why it is not, and which threads use its agents.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "error.hpp"
#include "group/config.hpp"

namespace backplane::core {

class GroupState {
 public:
  // `on_broken` is called once, by abort, on its thread and without a lock.
  GroupState(const GroupConfig& config, const JobResources& job, std::function<void(const Error&)> on_broken)
      : config_(config), job_(job), on_broken_(std::move(on_broken)) {}
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  bool active() const { return phase_.load() == Phase::kActive; }
  bool destroyed() const { return phase_.load() == Phase::kDestroyed; }
  bool started() const { return started_.load(); }
  // Throws why the group cannot be used, if it cannot.
  void check_active() const {
    if (!active() || config_.rank < 0) refuse();
  }
  // Throws why the group is not active.
  [[noreturn]] void refuse() const;
  // Why the group broke, if it did.
  std::optional<Error> cause() const;
  void throw_cause() const;
  // Waits until the group is broken, at most for `timeout_ns`. Returns the cause.
  std::optional<Error> await_cause(int64_t timeout_ns) const;

  void mark_started() { started_ = true; }
  // Breaks the group if it is active: everything pending and everything later fails with `cause`. Any thread; returns
  // at once.
  void abort(const Error& cause);
  // False if it was destroyed before.
  bool mark_destroyed() { return phase_.exchange(Phase::kDestroyed) != Phase::kDestroyed; }
  bool in_use() const { return users_.load() > 0; }
  void await_unused() const {
    for (uint32_t users = users_.load(); users != 0; users = users_.load()) users_.wait(users);
  }

 private:
  friend class UseGuard;
  enum class Phase : uint32_t { kActive, kBroken, kDestroyed };

  const GroupConfig& config_;
  const JobResources& job_;
  const std::function<void(const Error&)> on_broken_;
  std::atomic<Phase> phase_ = Phase::kActive;
  std::atomic<uint32_t> users_ = 0;  // threads that use the agents
  std::atomic<bool> started_ = false;
  mutable std::mutex mutex_;  // guards the cause; never held while a plugin is called
  mutable std::condition_variable broken_;
  std::optional<Error> cause_;
  bool is_loss_ = false;  // the cause is the loss of a member
};

// Held while a thread uses the agents of a group: destroy waits for it.
class UseGuard {
 public:
  explicit UseGuard(GroupState& state) : state_(state) { state_.users_.fetch_add(1); }
  ~UseGuard() {
    state_.users_.fetch_sub(1);
    if (!state_.active()) state_.users_.notify_all();
  }
  UseGuard(const UseGuard&) = delete;
  UseGuard& operator=(const UseGuard&) = delete;

 private:
  GroupState& state_;
};

// The same, in a group that is active. Throws why it is not.
class OperationGuard {
 public:
  explicit OperationGuard(GroupState& state) : use_(state) { state.check_active(); }

 private:
  const UseGuard use_;
};

}  // namespace backplane::core
