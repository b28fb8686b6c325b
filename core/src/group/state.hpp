// SPDX-License-Identifier: Apache-2.0
//
// The state of a group: active, broken (with the cause) or destroyed; how many threads use its agents; and how many
// handles of the C API it has.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "deadline.hpp"
#include "error.hpp"
#include "group/config.hpp"

namespace backplane::core {

class GroupState {
 public:
  // `on_broken` is called once, on the thread that calls abort, without a lock.
  GroupState(const GroupConfig& config, const JobResources& job, std::function<void(const Error&)> on_broken)
      : config_(config), job_(job), on_broken_(std::move(on_broken)) {}
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  bool active() const { return phase_.load() == Phase::kActive; }
  bool destroyed() const { return phase_.load() == Phase::kDestroyed; }
  bool started() const { return started_.load(); }
  // Throws unless the group is active and this rank is a member.
  void check_active() const {
    if (!active() || config_.rank < 0) refuse();
  }
  // Throws the reason why the group is not active.
  [[noreturn]] void refuse() const;
  // The cause of the first abort.
  std::optional<Error> cause() const;
  // Throws it, if there is one.
  void throw_cause() const;
  // Waits until the group is broken, for at most `timeout_ns`. Returns the cause.
  std::optional<Error> await_cause(int64_t timeout_ns) const;

  void mark_started() { started_ = true; }
  // Breaks the group if it is active: all pending and later operations fail with `cause`. Any thread. Does not block.
  void abort(const Error& cause);
  // False if the group was destroyed before.
  bool mark_destroyed() { return phase_.exchange(Phase::kDestroyed) != Phase::kDestroyed; }
  bool in_use() const { return users_.load() > 0; }
  void await_unused() const {
    for (uint32_t users = users_.load(); users != 0; users = users_.load()) users_.wait(users);
  }
  // False if it is still in use at the deadline.
  bool await_unused(const Deadline& deadline) const;

  void add_handle() { handles_.fetch_add(1); }
  // True if it was the last one.
  bool drop_handle() { return handles_.fetch_sub(1) == 1; }
  // The group is destroyed because the process ends. The destructors that exit runs must not wait for that.
  void mark_ending_with_process() { ends_with_process_ = true; }
  bool ends_with_process() const { return ends_with_process_.load(); }

 private:
  friend class UseGuard;
  enum class Phase : uint32_t { kActive, kBroken, kDestroyed };

  const GroupConfig& config_;
  const JobResources& job_;
  const std::function<void(const Error&)> on_broken_;
  std::atomic<Phase> phase_ = Phase::kActive;
  std::atomic<uint32_t> users_ = 0;  // threads that use the agents
  std::atomic<bool> started_ = false;
  std::atomic<int32_t> handles_ = 0;
  std::atomic<bool> ends_with_process_ = false;
  mutable std::mutex mutex_;  // guards the cause; never held while a plugin is called
  mutable std::condition_variable broken_;
  std::optional<Error> cause_;
  bool is_loss_ = false;  // the cause is a lost member
};

// Held while a thread uses the agents of a group. Destroy waits for its release.
class UseGuard {
 public:
  // In any state.
  explicit UseGuard(GroupState& state) : state_(state) { state_.users_.fetch_add(1); }
  // Throws unless the group is active.
  static UseGuard of_active(GroupState& state) { return UseGuard(state, true); }
  ~UseGuard() {
    state_.users_.fetch_sub(1);
    if (!state_.active()) state_.users_.notify_all();
  }
  UseGuard(const UseGuard&) = delete;
  UseGuard& operator=(const UseGuard&) = delete;

 private:
  // Delegates, so that the destructor runs if the check throws.
  UseGuard(GroupState& state, bool) : UseGuard(state) { state.check_active(); }

  GroupState& state_;
};

}  // namespace backplane::core
