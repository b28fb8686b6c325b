// SPDX-License-Identifier: Apache-2.0
#include "group/plugin_instance.hpp"

#include "error.hpp"
#include "interrupt.hpp"

namespace backplane::core {
namespace {

const bp_process_group_api* table_of(const bp_agent& agent) {
  return static_cast<const bp_process_group_api*>(agent.api);
}

}  // namespace

void PluginInstance::check_kind(const Member& member, uint32_t kind) {
  if ((member.backend->kinds & kind) != 0) return;
  if (kind == BP_KIND_LAYER) {
    fail(BP_INVALID, "{} is a backend, not a layer: BACKPLANE_LAYERS takes layers; name it in BACKPLANE_BACKEND",
         member.id);
  }
  if ((member.backend->kinds & BP_KIND_LAYER) != 0) {
    fail(BP_INVALID, "{} is a layer, not a backend: name it in BACKPLANE_LAYERS, and choose a backend for it to wrap",
         member.id);
  }
  fail(BP_INVALID, "backend {} is for RPC, not for process groups: name it in BACKPLANE_RPC_BACKEND", member.id);
}

struct PluginInstance::Start {
  Start(const AgentConfig& given, std::shared_ptr<const BackendOptions> given_options, std::shared_ptr<Host> given_host,
        const bp_agent* inner)
      : config(given), options(std::move(given_options)), host(std::move(given_host)) {
    for (const auto& [key, value] : options->values()) values.push_back({key.c_str(), value.c_str()});
    init = {sizeof(bp_init),
            config.rank,
            config.world_size,
            config.device,
            config.name.c_str(),
            host->table(),
            options->native(),
            values.data(),
            static_cast<uint32_t>(values.size()),
            inner == nullptr ? BP_KIND_PROCESS_GROUP : BP_KIND_LAYER,
            config.timeout_ns,
            config.global_ranks.data(),
            inner,
            config.parent,
            config.parent == nullptr ? nullptr : config.parent_ranks.data(),
            inner == nullptr ? nullptr : config.inner_backend};
  }
  Start(const Start&) = delete;
  Start& operator=(const Start&) = delete;

  AgentConfig config;
  const std::shared_ptr<const BackendOptions> options;
  const std::shared_ptr<Host> host;
  std::vector<bp_key_value> values;
  bp_init init = {};
};

PluginInstance::PluginInstance(const Member& member, std::shared_ptr<const BackendOptions> options,
                               const AgentConfig& config, const bp_agent* inner)
    : member_(member),
      host_(std::make_shared<Host>(fmt::format("{} rank {}", member.id, config.rank), config.store)),
      use_(*member.backend, config.rank, config.world_size, inner != nullptr || config.is_derived) {
  const bp_backend& backend = *member.backend;
  const bool is_layer = inner != nullptr;
  check_kind(member, is_layer ? BP_KIND_LAYER : BP_KIND_PROCESS_GROUP);
  const auto start = std::make_shared<Start>(config, std::move(options), host_, inner);
  host_->on_failure(config.on_failure);
  agent_.struct_size = sizeof(bp_agent);
  bp_error err;
  bp_error_init(&err);
  int32_t status = BP_OK;
  const IsolatedCalls isolated = isolated_calls(backend);
  if (isolated != IsolatedCalls::kNone) {
    isolation_ = std::make_shared<Isolation>(member.id, start);
    Deadline next_check = Interruptible::next_check(Deadline::never());
    const auto is_cancelled = [this, &next_check] {
      if (next_check.passed()) {
        if (Interruptible::interrupted()) host_->request_abort("interrupted by the program");
        next_check = Interruptible::next_check(Deadline::never());
      }
      return host_->abort_requested();
    };
    status = isolation_->init(backend, start->init, is_cancelled, &agent_, &err);
  } else {
    status = backend.init(&backend, &start->init, &agent_, &err);
  }
  if (!isolation_ || !isolation_->hung()) start->config.parent_owner.reset();
  if (status != BP_OK) {
    const Error own(status, err.text, err.peer_rank, err.native_code);
    const Error why = config.in_group ? config.in_group(own) : own;
    throw Error(status,
                fmt::format("rank {} could not start {} {} for group '{}': {}",
                            config.in_group ? config.rank_in_group : config.rank, is_layer ? "layer" : "backend",
                            member.id, config.name, why.what()),
                why.peer_rank(), why.native_code());
  }
  try {
    check_agent(config);
  } catch (...) {
    const bp_process_group_api* table = table_of(agent_);
    if (table != nullptr && BP_HAS(table, destroy) && table->destroy != nullptr) table->destroy(agent_.self);
    throw;
  }
  if (agent_.capabilities == nullptr) {  // those of the description or, for a layer, of the agent that it wraps
    agent_.capabilities = is_layer ? inner->capabilities : backend.capabilities;
    agent_.capability_count = is_layer ? inner->capability_count : backend.capability_count;
  }
  unisolated_agent_ = agent_;
  use_.begin(config.rank, config.world_size);
  if (isolated == IsolatedCalls::kInit) isolation_.reset();
  if (isolation_) {
    agent_.api = &isolation_->api();
    agent_.self = isolation_->self();
  }
}

PluginInstance::~PluginInstance() {
  host_->request_abort("the group is being destroyed");
  table_of(agent_)->destroy(agent_.self);
  host_->on_failure({});
}

void PluginInstance::check_agent(const AgentConfig& config) const {
  const bp_process_group_api* table = table_of(agent_);
  if (agent_.kind != BP_KIND_PROCESS_GROUP || table == nullptr || !BP_HAS(table, extension)) {
    fail(BP_INTERNAL, "backend {} did not return a complete process group", member_.id);
  }
  if (table->submit == nullptr || table->work_test == nullptr || table->work_wait == nullptr ||
      table->work_cancel == nullptr || table->work_release == nullptr || table->abort == nullptr ||
      table->destroy == nullptr || table->extension == nullptr) {
    fail(BP_INTERNAL, "backend {} returned a process group with a function that is NULL", member_.id);
  }
  for (uint32_t i = 0; agent_.capabilities != nullptr && i < agent_.capability_count; ++i) {
    if (agent_.capabilities[i] == nullptr || !BP_HAS(agent_.capabilities[i], memory)) {
      fail(BP_INTERNAL, "capability {} of the agent of backend {} is NULL or too short", i, member_.id);
    }
  }
  if (agent_.rank != config.rank) {
    fail(BP_INVALID, "rank argument {} doesn't match pg rank {}", config.rank, agent_.rank);
  }
  if (agent_.world_size != config.world_size) {
    fail(BP_INVALID, "world_size argument {} doesn't match pg size {}", config.world_size, agent_.world_size);
  }
}

}  // namespace backplane::core
