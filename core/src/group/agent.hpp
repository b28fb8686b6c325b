// SPDX-License-Identifier: Apache-2.0
//
// A backend's agent as the core holds it: the plugin's table, its host, and what it does natively.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "group/isolation.hpp"
#include "plugin/host.hpp"
#include "registry/registry.hpp"

namespace backplane::core {

// Who starts an agent.
struct AgentConfig {
  std::string name;  // of the group
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t device = -1;
  std::vector<int32_t> global_ranks;
  std::shared_ptr<Store> store;  // this agent's own keys
  int64_t timeout_ns = 0;
};

class Agent {
 public:
  // Runs the init handler. Throws core::Error.
  Agent(const Member& member, std::shared_ptr<const BackendOptions> options, const AgentConfig& config);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const std::string& id() const { return member_.id; }
  const bp_process_group_api& api() const { return *api_; }
  void* self() const { return isolation_ ? isolation_->self() : agent_.self; }
  bool has_flag(uint32_t flag) const { return (member_.backend->flags & flag) != 0; }

  // Does the backend itself perform this operation?
  bool native(uint32_t kind, uint32_t dtype, uint32_t reduce_op, uint32_t memory, bool reduces) const {
    for (const Native& n : native_[kind]) {
      if (kind == BP_BARRIER) return true;
      if ((n.dtypes & BP_BIT(dtype)) != 0 && (n.memory & BP_BIT(memory)) != 0 &&
          (!reduces || (n.reduce_ops & BP_BIT(reduce_op)) != 0)) {
        return true;
      }
    }
    return false;
  }
  // Can the core build what is missing out of this backend's sends and receives of host bytes?
  bool can_complete() const;

  // Was a call into the backend left behind? Then it may still use the buffers that it was given.
  bool wedged() const { return isolation_ && isolation_->wedged(); }

  // Makes everything in flight and everything later fail with `why`. Any thread.
  void abort(const bp_error& why);

 private:
  struct Native {
    uint64_t dtypes = 0;
    uint64_t reduce_ops = 0;
    uint64_t memory = 0;
  };

  // All that the backend may look at while it starts, and later.
  struct Start;

  int32_t start(const bp_init& init, const std::shared_ptr<Start>& start, bp_error* err);
  void check_identity(const AgentConfig& config) const;
  void learn_capabilities();

  const Member& member_;
  std::shared_ptr<Host> host_;
  std::shared_ptr<Isolation> isolation_;  // NULL if the backend is trusted
  bp_agent agent_ = {};
  const bp_process_group_api* api_ = nullptr;
  std::array<std::vector<Native>, BP_OP_COUNT> native_;  // an operation may be declared once per kind of memory
};

}  // namespace backplane::core
