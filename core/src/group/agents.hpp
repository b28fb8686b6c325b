// SPDX-License-Identifier: Apache-2.0
//
// The agents of a group, and the choice of the agent for an operation.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "error.hpp"
#include "group/config.hpp"
#include "group/operation.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {

class Agents {
 public:
  // `config` must outlive this object.
  explicit Agents(const GroupConfig& config) : config_(config) {}
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  // Starts the agent of one backend. Throws core::Error.
  void start(const ChosenBackend& backend, const AgentConfig& config);
  // The agent of this backend, NULL if there is none.
  std::shared_ptr<Agent> find(const Member& member) const;
  // Makes all operations in flight and later fail with `cause`. Any thread, also while agents start.
  void abort(const Error& cause);
  // Destroys the agents. No thread may use them.
  void close();

  // The agent for a kind of memory, NULL if there is none.
  Agent* serving(uint32_t memory) const { return by_memory_[memory]; }
  // The same. Throws BP_INVALID if there is none.
  Agent& of(uint32_t memory) const {
    Agent* const agent = by_memory_[memory];
    if (agent == nullptr) refuse(memory);
    return *agent;
  }
  // The agent for an operation on this kind of memory.
  Agent& of(const Operation& operation, uint32_t memory) const {
    const bp_op& op = operation.op;
    if (op.kind == BP_BARRIER) return *agents_.front();
    for (const SizeRoute& each : by_size_[op.kind]) {
      const uint64_t bytes = operation.per_rank * dtype_size(op.dtype);
      const bool is_in_range = bytes >= each.range.from && bytes < each.range.end;
      if (memory != BP_HOST || !is_in_range) continue;
      const bool is_able = each.agent->supports_schedules() ||
                           each.agent->native(op.kind, op.dtype, op.reduce_op, memory, reduces(op.kind));
      if (is_able) return *each.agent;
    }
    return of(memory);
  }
  // Whether the agent for collectives of this kind depends on their size.
  bool depends_on_size(uint32_t kind) const { return !by_size_[kind].empty(); }
  // The layer that observes calls, NULL if there is none.
  const bp_calls_api* call_layer() const { return agents_.empty() ? nullptr : agents_.front()->calls(); }

 private:
  struct SizeRoute {
    SizeRange range;
    Agent* agent;
  };
  [[noreturn]] void refuse(uint32_t memory) const;

  const GroupConfig& config_;
  mutable std::mutex mutex_;                    // guards agents_ during the start; never held while a plugin is called
  std::vector<std::shared_ptr<Agent>> agents_;  // shared with starting subgroups
  std::array<Agent*, BP_MEMORY_COUNT> by_memory_ = {};
  std::array<std::vector<SizeRoute>, BP_OP_COUNT> by_size_;  // by kind
};

}  // namespace backplane::core
