// SPDX-License-Identifier: Apache-2.0
#include "group/agents.hpp"

#include <algorithm>

namespace backplane::core {
namespace {

bp_error report_of(const Error& error) {
  bp_error err;
  bp_error_init(&err);
  bp_error_set(&err, error.status(), error.native_code(), error.peer_rank(), error.what());
  return err;
}

}  // namespace

void Agents::start(const ChosenBackend& backend, const AgentConfig& config) {
  auto made = std::make_shared<Agent>(ChosenPlugin{backend.member, backend.options}, config_.layers, config);
  Agent* const agent = made.get();
  {
    const std::lock_guard lock(mutex_);
    agents_.push_back(std::move(made));
  }
  for (const SizeRange& range : backend.only) by_size_[range.kind].push_back({range, agent});
  for (uint32_t memory = 0; memory < BP_MEMORY_COUNT && backend.only.empty(); ++memory) {
    const bool named = backend.memory == memory;
    if (named || (!backend.memory && by_memory_[memory] == nullptr)) by_memory_[memory] = agent;
  }
}

std::shared_ptr<Agent> Agents::find(const Member& member) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(agents_.begin(), agents_.end(),
                                  [&member](const auto& agent) { return &agent->member() == &member; });
  return found == agents_.end() ? nullptr : *found;
}

void Agents::abort(const Error& cause) {
  const bp_error why = report_of(cause);
  std::vector<Agent*> agents;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& agent : agents_) agents.push_back(agent.get());
  }
  for (Agent* agent : agents) agent->abort(why);
}

void Agents::close() {
  by_memory_ = {};
  by_size_ = {};
  for (const auto& agent : agents_) {  // a detached init of a subgroup may still use the agent, which is kept for it
    if (agent.use_count() > 1) agent->abort(report_of(Error(BP_CANCELLED, "the group was destroyed")));
  }
  agents_.clear();
}

void Agents::refuse(uint32_t memory) const {
  fail(BP_INVALID, "group '{}' has no backend for {} memory; name one, as in cpu:gloo,cuda:nccl", config_.name,
       memory == BP_HOST ? "cpu" : "cuda");
}

}  // namespace backplane::core
