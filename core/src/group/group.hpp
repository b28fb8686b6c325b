// SPDX-License-Identifier: Apache-2.0
//
// A process group: the ranks of a job that communicate, with the agents that do so for them. A Group owns its parts,
// starts them, ends them, and is what the parts of other groups and of the C API meet:
//
//   state        whether the group is usable, and which threads use it
//   agents       the backends, with the layers around them
//   operations   from an operation to an agent and back; requests in flight
//   subgroups    groups made from this one
//   trace        the flight recorder
//   call_observer  shows an RPC worker's calls to the layers
//
// Destroying a group ends the groups made from it, then its operations, then its agents.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "group/agents.hpp"
#include "group/call_observer.hpp"
#include "group/config.hpp"
#include "group/failures.hpp"
#include "group/fingerprint.hpp"
#include "group/operations.hpp"
#include "group/state.hpp"
#include "group/subgroups.hpp"
#include "group/trace.hpp"

namespace backplane::core {

class Group final : public std::enable_shared_from_this<Group>, private Liveness::Listener {
 public:
  // Waits for all members, compares what they chose, and starts the agents. For a non-member does nothing. Ends early
  // when a member is lost, and when `parent` (may be NULL) is aborted or destroyed. Throws core::Error.
  static std::shared_ptr<Group> start(GroupConfig config, Group* parent = nullptr);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // As given, without its job; once the group has started, `auto` is replaced by backends.
  const GroupConfig& config() const { return config_; }
  bool member() const { return config_.rank >= 0; }
  const JobResources& job() const { return job_; }
  // A view of the group's keys; abort, and destroy if it must, interrupt waits on it.
  const std::shared_ptr<Store>& store() const { return store_; }
  GroupState& state() { return state_; }
  Agents& agents() { return agents_; }
  const Failures& failures() const { return failures_; }
  Operations& operations() { return operations_; }
  Subgroups& subgroups() { return subgroups_; }
  GroupTrace& trace() { return trace_; }
  CallObserver& call_observer() { return call_observer_; }

  // Makes everything pending and everything later fail with `cause`, if the group is active. Any thread; returns at
  // once.
  void abort(const Error& cause) { state_.abort(cause); }
  // Ends the group and those made from it. Returns when the agents are closed. May be called twice.
  void destroy();
  // Handles of the C API; dropping the last one destroys the group.
  void add_handle() { handles_.fetch_add(1); }
  void drop_handle();

 private:
  Group(GroupConfig config, JobResources job);
  // start.cpp
  void start_agents(const Group* parent);
  void start_agent(const ChosenBackend& backend, Deadline deadline, const Group* parent);
  Error start_failure(const std::exception& e) const;
  std::string publish_failure(const std::string& problem) const;
  void add_to_reporter();

  void on_loss(const Loss& loss) override;
  void on_broken(const Error& cause);
  void end_start(const Error& cause);
  std::string answer(const Query& query);

  GroupConfig config_;
  JobResources job_;
  std::shared_ptr<Store> store_;
  GroupState state_;
  Agents agents_;
  GroupTrace trace_;
  Failures failures_;
  FingerprintCheck fingerprints_;
  Operations operations_;
  Subgroups subgroups_;
  CallObserver call_observer_;
  std::optional<Reporter::ListenerId> reporter_id_;
  std::atomic<int32_t> handles_ = 0;
  std::mutex destroy_mutex_;  // held while the group is destroyed
};

}  // namespace backplane::core
