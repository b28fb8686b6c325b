// SPDX-License-Identifier: Apache-2.0
//
// One plugin of an agent: the backend, or a layer around the next inner plugin. Runs and checks its init, and isolates
// its calls if necessary (see isolation.hpp).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "error.hpp"
#include "group/isolation.hpp"
#include "plugin/host.hpp"
#include "plugin/library_use.hpp"
#include "registry/registry.hpp"
#include "schedule/topology.hpp"

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
  // Of a part of a composite, whose ranks have other numbers than in the group; empty otherwise.
  int32_t rank_in_group = -1;
  std::function<Error(const Error&)> in_group = {};  // an error of the plugin, in the numbers of the group
};

// One of the agents that an Agent consists of: that of a plugin, or a composite.
class AgentInstance {
 public:
  AgentInstance() = default;
  virtual ~AgentInstance() = default;
  AgentInstance(const AgentInstance&) = delete;
  AgentInstance& operator=(const AgentInstance&) = delete;

  virtual const Member& member() const = 0;
  // The agent to call, isolated if necessary. Its capabilities are NULL only if it has none.
  virtual const bp_agent& agent() const = 0;
  // The agent that init made.
  virtual const bp_agent& unisolated_agent() const = 0;
  // Whether a call into the plugin hung and was detached. It may still use its buffers.
  virtual bool hung() const = 0;
  // From now on the plugin's host reports that the group is being aborted.
  virtual void request_abort(const std::string& why) = 0;
  // Which ranks are near each other; NULL if all are equally far. Valid as long as this object.
  virtual const Topology* topology() const { return nullptr; }
};

class PluginInstance final : public AgentInstance {
 public:
  // Throws BP_INVALID unless the plugin makes agents of this kind: BP_KIND_PROCESS_GROUP or BP_KIND_LAYER.
  static void check_kind(const Member& member, uint32_t kind);

  // Runs the init handler. `inner`: the agent that a layer wraps, NULL for a backend. Throws core::Error.
  PluginInstance(const Member& member, std::shared_ptr<const BackendOptions> options, const AgentConfig& config,
                 const bp_agent* inner);
  ~PluginInstance() override;

  const Member& member() const override { return member_; }
  const bp_agent& agent() const override { return agent_; }
  const bp_agent& unisolated_agent() const override { return unisolated_agent_; }
  bool hung() const override { return isolation_ && isolation_->hung(); }
  void request_abort(const std::string& why) override { host_->request_abort(why); }

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
