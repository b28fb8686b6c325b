// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "log.hpp"

namespace backplane::core::rpc {
namespace {

constexpr uint64_t kDefaultMaxMessageBytes = uint64_t{1} << 32;  // of backends without the option

// The group's own backend for host memory.
const ChosenBackend& backend_of(const Group& group, const Member& agent) {
  const std::vector<ChosenBackend>& all = group.config().backends;
  const auto chosen = std::find_if(all.begin(), all.end(), [](const ChosenBackend& each) {
    return each.only.empty() && (!each.memory || *each.memory == BP_HOST);
  });
  if (chosen == all.end()) {
    fail(BP_INVALID, "{} sends host memory, for which this group has no backend", agent.id);
  }
  return *chosen;
}

Transport::Sink& sink_of(void* ctx) { return *static_cast<Transport::Sink*>(ctx); }
Error error_of(const bp_error& err) { return {err.status, err.text, err.peer_rank, err.native_code}; }

// Runs `body` for a report of an agent. An exception is logged: the agent could not handle it.
template <typename Body>
void handle_report(Body&& body) {
  bp_error err;
  bp_error_init(&err);
  if (guarded(&err, std::forward<Body>(body)) == BP_OK) return;
  static base::LogLimit limit;  // of reports of this type
  log(limit, BP_LOG_WARN, "rpc: an invalid report of an agent was dropped: {}", err.text);
}

void report_received(void* ctx, int32_t from, const bp_rpc_message* message) { sink_of(ctx).received(from, *message); }
void report_failed(void* ctx, int32_t to, uint64_t id, const bp_error* err) {
  handle_report([=] { sink_of(ctx).failed(to, id, error_of(*err)); });
}
void report_lost(void* ctx, int32_t peer, const bp_error* err) {
  handle_report([=] { sink_of(ctx).lost(peer, error_of(*err)); });
}
void report_refused(void* ctx, int32_t from, const bp_rpc_message* message, const bp_error* err) {
  handle_report([=] { sink_of(ctx).refused(from, *message, error_of(*err)); });
}

// Destroys an agent that is refused, if its table is complete enough: it uses the host and the inner group, which are
// about to be destroyed.
template <typename Api>
void destroy_refused(const bp_agent& agent, const char* text) {
  const auto* api = static_cast<const Api*>(agent.api);
  if (api == nullptr || !BP_HAS(api, destroy) || api->abort == nullptr || api->destroy == nullptr) return;
  bp_error why;
  bp_error_init(&why);
  bp_error_set(&why, BP_INVALID, 0, -1, text);
  api->abort(agent.self, &why);
  api->destroy(agent.self);
}

}  // namespace

void Transport::check_kind(const Member& member) {
  if ((member.backend->kinds & BP_KIND_RPC) != 0) return;
  fail(BP_INVALID,
       "{} makes process groups, not RPC agents; to call over it, choose process_group and name it as its group",
       member.id);
}

void Transport::check_group(const Member& member, const Group& group) {
  if ((member.backend->flags & BP_BACKEND_RPC_OVER_GROUP) == 0) return;
  constexpr uint32_t kNeeded = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE;
  const Member& below = *backend_of(group, member).member;
  if ((matcher_of(*below.backend, group.config().layers).flags & kNeeded) == kNeeded) return;
  fail(
      BP_UNSUPPORTED,
      "{} needs a group whose backend matches tags and receives from anyone, which {} does not; choose another one for "
      "the group, as zmq, or an agent with connections of its own, or {}",
      member.id, below.id, kMatchingHint);
}

uint64_t Transport::max_message_bytes(const BackendOptions& options) {
  for (const auto& [key, value] : options.values()) {
    if (key == "max_message_bytes") return std::stoull(value);
  }
  return kDefaultMaxMessageBytes;
}

Transport::Transport(const Member& member, const std::shared_ptr<const BackendOptions>& options, const Group& group,
                     const std::shared_ptr<Store>& store, const std::string& name, int64_t timeout_ns, Sink* sink)
    : member_(member),
      sink_(*sink),
      options_(options),
      use_(*member.backend, group.config().rank, group.config().world_size, true) {
  check_kind(member);
  const GroupConfig& config = group.config();
  offered_ = {sizeof(bp_rpc_host),         0,           &sink_,        report_received, report_failed,
              max_message_bytes(*options), report_lost, report_refused};
  if ((member.backend->flags & BP_BACKEND_RPC_OVER_GROUP) != 0) make_inner(group, store, timeout_ns);
  host_ = std::make_unique<Host>(fmt::format("{} {}", member.id, name), make_prefix_store(store, "rpc/agent/"));
  host_->offer(BP_EXT_RPC, &offered_);
  std::vector<bp_key_value> values;
  for (const auto& [key, value] : options->values()) values.push_back({key.c_str(), value.c_str()});
  const bp_init init = {sizeof(bp_init),
                        config.rank,
                        config.world_size,
                        config.device,
                        name.c_str(),
                        host_->table(),
                        options->native(),
                        values.data(),
                        static_cast<uint32_t>(values.size()),
                        BP_KIND_RPC,
                        timeout_ns,
                        config.global_ranks.data(),
                        inner_ ? &inner_->outermost() : nullptr,
                        nullptr,
                        nullptr,
                        nullptr};
  agent_.struct_size = sizeof(bp_agent);
  bp_error err;
  bp_error_init(&err);
  const int32_t status = member.backend->init(member.backend, &init, &agent_, &err);
  if (status != BP_OK) throw_report(status, err, fmt::format("worker '{}' could not start {}", name, member.id));
  check(group);
  use_.begin(config.rank, config.world_size);
  api_ = static_cast<const bp_rpc_api*>(agent_.api);
}

void Transport::check(const Group& group) const {
  const auto* api = static_cast<const bp_rpc_api*>(agent_.api);
  if (agent_.kind != BP_KIND_RPC || api == nullptr || !BP_HAS(api, extension) || api->send == nullptr ||
      api->abort == nullptr || api->destroy == nullptr || api->extension == nullptr) {
    constexpr const char* kIncomplete = "this is not a complete RPC agent";
    if (agent_.kind == BP_KIND_RPC) destroy_refused<bp_rpc_api>(agent_, kIncomplete);
    if (agent_.kind == BP_KIND_PROCESS_GROUP) destroy_refused<bp_process_group_api>(agent_, kIncomplete);
    fail(BP_INTERNAL, "backend {} did not return a complete RPC agent", member_.id);
  }
  const GroupConfig& config = group.config();
  if (agent_.rank == config.rank && agent_.world_size == config.world_size) return;
  destroy_refused<bp_rpc_api>(agent_, "the agent has another rank or world size");
  if (agent_.rank != config.rank) {
    fail(BP_INVALID, "rank argument {} doesn't match pg rank {}", config.rank, agent_.rank);
  }
  fail(BP_INVALID, "world_size argument {} doesn't match pg size {}", config.world_size, agent_.world_size);
}

// A second agent of the group's backend: the loss of a worker breaks the group, but must not affect messages among the
// others.
void Transport::make_inner(const Group& group, const std::shared_ptr<Store>& store, int64_t timeout_ns) {
  const GroupConfig& config = group.config();
  const ChosenBackend& chosen = backend_of(group, member_);
  constexpr uint32_t kMatching = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG;
  const bp_backend& backend = *chosen.member->backend;
  offered_.inner_flags = (backend.flags & ~kMatching) | (matcher_of(backend, config.layers).flags & kMatching);
  AgentConfig agent;
  agent.name = config.name + ".rpc";
  agent.rank = config.rank;
  agent.world_size = config.world_size;
  agent.device = config.device;
  agent.global_ranks = config.global_ranks;
  agent.store = make_prefix_store(store, "rpc/inner/");
  agent.timeout_ns = timeout_ns;
  inner_ = std::make_unique<core::Agent>(ChosenPlugin{chosen.member, chosen.options}, config.layers, agent);
}

Transport::~Transport() {
  if (api_ == nullptr) return;
  abort(Error(BP_CANCELLED, "this worker has left"));
  api_->destroy(agent_.self);
}

void Transport::send(int32_t to, const bp_rpc_message& message, int64_t timeout_ns) {
  bp_error err;
  bp_error_init(&err);
  const int32_t status = api_->send(agent_.self, to, &message, timeout_ns, &err);
  if (status != BP_OK) throw_report(status, err, "");
}

void Transport::abort(const Error& why) {
  bp_error err;
  bp_error_init(&err);
  bp_error_set(&err, why.status(), why.native_code(), why.peer_rank(), why.what());
  host_->request_abort(why.what());
  api_->abort(agent_.self, &err);
}

}  // namespace backplane::core::rpc
