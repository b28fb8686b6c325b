// SPDX-License-Identifier: Apache-2.0
//
// One level of an agent: the backend itself, or a layer around the level below. It is started here, checked, and called
// through a table that comes back in time (see isolation.hpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "group/isolation.hpp"
#include "plugin/host.hpp"
#include "plugin/library_use.hpp"
#include "registry/registry.hpp"

namespace backplane::core {

// Who starts.
struct AgentConfig {
  std::string name;  // of the group
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t device = -1;
  std::vector<int32_t> global_ranks;
  std::shared_ptr<Store> store;  // this level's own keys
  int64_t timeout_ns = 0;
  const bp_agent* parent = nullptr;           // of the same backend in the group that this one is made from
  std::vector<int32_t> parent_ranks = {};     // with a parent: each member's rank there
  std::shared_ptr<void> parent_owner = {};    // keeps it until init has returned, which may be never
  const bp_backend* inner_backend = nullptr;  // of a layer: the backend below
  Host::FailureListener on_failure = {};      // hears of failures that the plugin reports
};

class Stage {
 public:
  // Throws core::Error (BP_INVALID) unless the backend makes agents of that kind: BP_KIND_PROCESS_GROUP, BP_KIND_LAYER.
  static void check_kind(const Member& member, uint32_t kind);

  // Runs the init handler. `inner`: the level below, NULL for a backend. Throws core::Error.
  Stage(const Member& member, std::shared_ptr<const BackendOptions> options, const AgentConfig& config,
        const bp_agent* inner);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const Member& member() const { return member_; }
  // What the level above calls. Its capabilities are those that hold: never NULL unless there are none.
  const bp_agent& agent() const { return agent_; }
  // What init made, whether or not calls into it are isolated.
  const bp_agent& bare_agent() const { return bare_agent_; }
  // Was a call into it left behind? Then it may still use the buffers that it was given.
  bool hung() const { return isolation_ && isolation_->wedged(); }
  // From now on its host says that the group is being aborted.
  void request_abort(const std::string& why) { host_->request_abort(why); }

 private:
  // All that the plugin may look at while it starts, and later.
  struct Start;

  void check_identity(const AgentConfig& config) const;
  void settle_capabilities(const bp_agent* inner);

  const Member& member_;
  std::shared_ptr<Host> host_;
  std::shared_ptr<Isolation> isolation_;  // NULL if the plugin is trusted
  LibraryUse use_;
  bp_agent agent_ = {};
  bp_agent bare_agent_ = {};
};

}  // namespace backplane::core
