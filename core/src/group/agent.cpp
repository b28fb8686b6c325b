// SPDX-License-Identifier: Apache-2.0
#include "group/agent.hpp"

#include "error.hpp"

namespace backplane::core {

struct Agent::Start {
  AgentConfig config;
  std::shared_ptr<const BackendOptions> options;
  std::shared_ptr<Host> host;
  std::vector<bp_key_value> values;
};

Agent::Agent(const Member& member, std::shared_ptr<const BackendOptions> options, const AgentConfig& config)
    : member_(member), host_(std::make_shared<Host>(fmt::format("{} rank {}", member.id, config.rank), config.store)) {
  if ((member.backend->kinds & BP_KIND_PROCESS_GROUP) == 0) {
    fail(BP_INVALID, "backend {} makes no process groups", member.id);
  }
  const auto start = std::make_shared<Start>(Start{config, std::move(options), host_, {}});
  for (const auto& [key, value] : start->options->values()) start->values.push_back({key.c_str(), value.c_str()});
  const bp_init init = {sizeof(bp_init),
                        config.rank,
                        config.world_size,
                        config.device,
                        start->config.name.c_str(),
                        host_->table(),
                        start->options->native(),
                        start->values.data(),
                        static_cast<uint32_t>(start->values.size()),
                        BP_KIND_PROCESS_GROUP,
                        config.timeout_ns,
                        start->config.global_ranks.data(),
                        nullptr};
  agent_.struct_size = sizeof(bp_agent);
  bp_error err;
  bp_error_init(&err);
  const int32_t status = this->start(init, start, &err);
  if (status != BP_OK) {
    throw_report(status, err,
                 fmt::format("rank {} could not start backend {} for group '{}'", config.rank, member.id, config.name));
  }
  const auto* table = static_cast<const bp_process_group_api*>(agent_.api);
  try {
    check_identity(config);
    learn_capabilities();
  } catch (...) {
    if (table != nullptr && BP_HAS(table, destroy)) table->destroy(agent_.self);
    throw;
  }
  api_ = isolation_ ? &isolation_->api() : table;
}

int32_t Agent::start(const bp_init& init, const std::shared_ptr<Start>& start, bp_error* err) {
  const bp_backend& backend = *member_.backend;
  if (!isolated(backend)) return backend.init(&backend, &init, &agent_, err);
  isolation_ = std::make_shared<Isolation>(member_.id, start);
  const auto given_up = [this] { return host_->abort_requested(); };
  return isolation_->init(backend, init, given_up, &agent_, err);
}

Agent::~Agent() {
  host_->request_abort("the group is being destroyed");
  api_->destroy(self());
}

void Agent::check_identity(const AgentConfig& config) const {
  const auto* table = static_cast<const bp_process_group_api*>(agent_.api);
  if (agent_.kind != BP_KIND_PROCESS_GROUP || table == nullptr || !BP_HAS(table, extension)) {
    fail(BP_INTERNAL, "backend {} did not return a complete process group", member_.id);
  }
  if (agent_.rank != config.rank) {
    fail(BP_INVALID, "rank argument {} doesn't match pg rank {}", config.rank, agent_.rank);
  }
  if (agent_.world_size != config.world_size) {
    fail(BP_INVALID, "world_size argument {} doesn't match pg size {}", config.world_size, agent_.world_size);
  }
}

void Agent::learn_capabilities() {
  const bp_capability* const* capabilities = member_.backend->capabilities;
  uint32_t count = member_.backend->capability_count;
  if (agent_.capabilities != nullptr) {
    capabilities = agent_.capabilities;
    count = agent_.capability_count;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const bp_capability& c = *capabilities[i];
    if (c.op < BP_OP_COUNT) native_[c.op].push_back({c.dtypes, c.reduce_ops, c.memory});
  }
}

bool Agent::can_complete() const {
  return native(BP_SEND, BP_U8, 0, BP_HOST, false) && native(BP_RECV, BP_U8, 0, BP_HOST, false);
}

void Agent::abort(const bp_error& why) {
  host_->request_abort(why.text);
  api_->abort(self(), &why);
}

}  // namespace backplane::core
