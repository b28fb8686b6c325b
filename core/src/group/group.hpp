// SPDX-License-Identifier: Apache-2.0
//
// A process group: ranks of a job that communicate. A Group owns, starts and ends its parts:
//
//   state          active, broken or destroyed, the threads that use the agents, and the handles of the program
//   agents         the backends, with the layers around them
//   recorder       the flight recorder; trace: the recorder as JSON
//   failures       from a backend's error to the error that all ranks report
//   fingerprints   compares collectives between ranks
//   operations     from an operation to an agent and back; requests in flight
//   subgroups      groups made from this one
//   call_observer  reports an RPC worker's calls to the layers
//
// Destroying a group ends the groups made from it, then its operations, then its agents.
#pragma once

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
#include "group/recorder.hpp"
#include "group/state.hpp"
#include "group/subgroups.hpp"
#include "group/trace.hpp"

namespace backplane::core {

class Group final : public std::enable_shared_from_this<Group>, private FailureDetector::Listener {
 public:
  // Waits for all members, compares their configurations, and starts the agents. Returns at once for a non-member.
  // Fails early if a member is lost, or if `parent` (may be NULL) is aborted or destroyed. Throws core::Error.
  static std::shared_ptr<Group> start(GroupConfig config, Group* parent = nullptr);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // As given, without its job. Once the group has started, backends have replaced `auto`.
  const GroupConfig& config() const { return config_; }
  bool member() const { return config_.rank >= 0; }
  const JobResources& job() const { return job_; }
  // A view of the group's keys. Abort, and destroy if necessary, interrupts waits on it.
  const std::shared_ptr<Store>& store() const { return store_; }
  GroupState& state() { return state_; }
  Agents& agents() { return agents_; }
  Failures& failures() { return failures_; }
  FingerprintCheck& fingerprints() { return fingerprints_; }
  Operations& operations() { return operations_; }
  Subgroups& subgroups() { return subgroups_; }
  Recorder& recorder() { return recorder_; }
  GroupTrace& trace() { return trace_; }
  CallObserver& call_observer() { return call_observer_; }

  // Ends the group and the groups made from it. Blocks until the agents are closed. May be called twice.
  void destroy();
  // Destroys the group when the process ends, unless a thread is still in a call: its error could end the program in
  // another way. Waits for such threads, not beyond the deadline.
  void end_at_exit(const Deadline& deadline) noexcept;
  // Drops a handle of the C API. The last one destroys the group, unless it ends with the process.
  void drop_handle();

 private:
  Group(GroupConfig config, JobResources job);
  // start.cpp
  void start_agents(Group* parent);
  void add_to_reporter();

  void on_loss(const Loss& loss) override;
  void on_broken(const Error& cause);
  void end_start(const Error& cause);
  std::string answer(const Query& query);

  GroupConfig config_;
  JobResources job_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<GroupKeys> keys_;  // once all ranks have joined
  GroupState state_;
  Agents agents_;
  Recorder recorder_;
  GroupTrace trace_;
  Failures failures_;
  FingerprintCheck fingerprints_;
  Operations operations_;
  Subgroups subgroups_;
  CallObserver call_observer_;
  std::optional<Reporter::ListenerId> reporter_id_;
  std::mutex destroy_mutex_;  // held while the group is destroyed
};

}  // namespace backplane::core
