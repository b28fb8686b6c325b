// SPDX-License-Identifier: Apache-2.0
//
// One plugin of an agent: the backend, or a layer around the next inner plugin. Runs and checks its init, and isolates
// its calls if necessary (see isolation.hpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "group/isolation.hpp"
#include "plugin/host.hpp"
#include "plugin/library_use.hpp"
#include "registry/registry.hpp"

namespace backplane::core {

// The arguments of init.
struct AgentConfig {
  std::string name;  // of the group
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t device = -1;
  std::vector<int32_t> global_ranks;
  std::shared_ptr<Store> store;  // the plugin's own keys
  int64_t timeout_ns = 0;
  const bp_agent* parent = nullptr;           // of the same backend in the parent group, NULL if there is none
  std::vector<int32_t> parent_ranks = {};     // with a parent: each member's rank in the parent group
  std::shared_ptr<void> parent_owner = {};    // keeps the parent until init has returned
  bool is_derived = false;                    // made from a group that has the backend, if only from an aborted one
  const bp_backend* inner_backend = nullptr;  // of a layer: the innermost backend
  Host::FailureListener on_failure = {};      // receives the failures that the plugin reports
};

class PluginInstance {
 public:
  // Throws BP_INVALID unless the plugin makes agents of this kind: BP_KIND_PROCESS_GROUP or BP_KIND_LAYER.
  static void check_kind(const Member& member, uint32_t kind);

  // Runs the init handler. `inner`: the agent that a layer wraps, NULL for a backend. Throws core::Error.
  PluginInstance(const Member& member, std::shared_ptr<const BackendOptions> options, const AgentConfig& config,
                 const bp_agent* inner);
  ~PluginInstance();
  PluginInstance(const PluginInstance&) = delete;
  PluginInstance& operator=(const PluginInstance&) = delete;

  const Member& member() const { return member_; }
  // The agent to call, isolated if necessary. Its capabilities are NULL only if it has none.
  const bp_agent& agent() const { return agent_; }
  // The agent that init made.
  const bp_agent& unisolated_agent() const { return unisolated_agent_; }
  // Whether a call into the plugin hung and was detached. It may still use its buffers.
  bool hung() const { return isolation_ && isolation_->hung(); }
  // From now on the plugin's host reports that the group is being aborted.
  void request_abort(const std::string& why) { host_->request_abort(why); }

 private:
  // Memory that the plugin may read during init and later.
  struct Start;

  void check_agent(const AgentConfig& config) const;

  const Member& member_;
  std::shared_ptr<Host> host_;
  std::shared_ptr<Isolation> isolation_;  // NULL: calls after init are not isolated
  LibraryUse use_;
  bp_agent agent_ = {};
  bp_agent unisolated_agent_ = {};
};

}  // namespace backplane::core
