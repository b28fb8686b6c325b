// SPDX-License-Identifier: Apache-2.0
//
// Submits operations to agents: checks an operation, records it, and hands it to the backend that serves its memory, or
// performs it by a schedule over that backend's sends and receives.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "backplane/base/executor.hpp"
#include "group/agents.hpp"
#include "group/failures.hpp"
#include "group/fingerprint.hpp"
#include "group/in_flight.hpp"
#include "group/recorder.hpp"
#include "group/state.hpp"

namespace backplane::core {

class Group;
class NativeRequest;
class TaskRequest;
class Watchdog;

class Operations {
 public:
  // All belong to `group`, which the requests keep alive.
  Operations(Group& group, const GroupConfig& config, GroupState& state, Agents& agents, Recorder& recorder,
             Failures& failures, const FingerprintCheck& fingerprints);
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  // Performs an operation and waits for it.
  void run(const bp_op& op);
  // A send or recv (with tag 0) whose tag is one of the core's own.
  void run_with_tag(const bp_op& op, uint64_t tag);
  // Starts operations. All or nothing. `unpack` (may be empty) is called when they are done, before the requests are.
  std::vector<std::shared_ptr<Request>> submit(const bp_op* const* ops, size_t count,
                                               const std::function<void()>& unpack = {});
  // A number for an object that this rank sends, different from earlier ones.
  uint64_t next_object() { return objects_.fetch_add(1, std::memory_order_relaxed) & ((UINT64_C(1) << 48) - 1); }

  // For requests.
  const GroupConfig& config() const { return config_; }
  GroupState& state() { return state_; }
  Failures& failures() { return failures_; }
  const std::shared_ptr<Watchdog>& watchdog() const { return watchdog_; }
  // Performs an operation on the group's thread. Throws core::Error.
  void perform_task(const Operation& operation);
  // Waits for a backend's work until the deadline; then makes it end, if need be by aborting the whole group, and
  // returns BP_TIMEOUT. Never BP_AGAIN. Releases nothing.
  int32_t finish_work(const Operation& operation, bp_work* work, Deadline deadline, bp_error* err);
  // A request has ended.
  void finish(Request& request, int32_t status);

  // The end of the group, in this order. `cancel`: true if all requests have ended.
  bool cancel() { return in_flight_.cancel_all(); }
  void close();

 private:
  // Checks and completes an operation, and chooses its agent.
  Operation prepare(const bp_op& given) const;
  Operation prepare_any(const bp_op& given) const;
  void check_matching(const Operation& operation) const;
  // Numbers an operation and records its start.
  void record_start(Operation* operation, uint64_t flags);
  void execute(Operation* operation);
  void perform(const Operation& operation);
  std::shared_ptr<Request> start(Operation operation, const std::function<void()>& unpack);
  void start_native(const std::shared_ptr<NativeRequest>& request);
  void start_task(const std::shared_ptr<TaskRequest>& request);
  static bool begin_together(const Operation& one, const Operation& next);
  void take_back(const std::vector<std::shared_ptr<Request>>& requests);

  Group& group_;
  const GroupConfig& config_;
  GroupState& state_;
  Agents& agents_;
  Recorder& recorder_;
  Failures& failures_;
  const FingerprintCheck& fingerprints_;
  std::atomic<uint64_t> objects_ = 0;
  RequestsInFlight in_flight_;
  const std::shared_ptr<Watchdog> watchdog_;
  base::Executor executor_{1};  // asynchronous collectives that the backend lacks, in the order of submission
};

}  // namespace backplane::core
