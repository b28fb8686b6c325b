// SPDX-License-Identifier: Apache-2.0
//
// RPC agents (abi/ext/rpc.h) in C++: an agent is one class, and its description is that of backend.hpp with
// kinds = BP_KIND_RPC, `capabilities` empty, and an init that makes the agent:
//
//     static std::unique_ptr<sdk::RpcAgent> init(const sdk::Context& context);
//
// A backend that also makes process groups has both kinds; its `init` makes a group, and a second function an agent:
//
//     static std::unique_ptr<sdk::RpcAgent> init_rpc(const sdk::Context& context);
//
// Its options begin with those that every agent has: sdk::joined(sdk::kRpcOptions, ...).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "backplane/abi/ext/rpc.h"
#include "block.hpp"

namespace backplane::sdk {

// Options of every agent, read by the core.
inline constexpr std::array kRpcOptions = {
    option({.type = BP_OPTION_INT,
            .key = "num_worker_threads",
            .default_value = "16",
            .help = "RPC: functions that run at a time, not counting those that wait for calls of their own",
            .min = 1,
            .max = 4096}),
    option({.type = BP_OPTION_INT,
            .key = "max_message_bytes",
            .default_value = "4294967296",
            .help = "RPC: the largest message that is sent or taken",
            .min = 65536,
            .max = INT64_C(1) << 40})};

// Option of agents that receive into their own memory, and its reader.
inline constexpr bp_option kReceivedMemoryOption =
    option({.type = BP_OPTION_INT,
            .key = "keep_bytes",
            .default_value = "134217728",
            .help = "RPC: memory of large messages that is kept to receive the next ones into, bytes; 0: none",
            .min = 0,
            .max = INT64_C(1) << 40});
inline std::shared_ptr<BlockPool> received_memory(const Options& options) {
  return std::make_shared<BlockPool>(static_cast<uint64_t>(options.integer("keep_bytes")));
}

// Owns a message that the agent has taken over. The destructor returns it. Move-only.
class RpcMessage {
 public:
  explicit RpcMessage(const bp_rpc_message& message)
      : message_(known_part(message)), buffers_(message_.buffers, message_.buffers + message_.buffer_count) {
    message_.buffers = buffers_.data();
  }
  RpcMessage(RpcMessage&& other) noexcept
      : message_(std::exchange(other.message_, bp_rpc_message{})), buffers_(std::move(other.buffers_)) {}
  RpcMessage& operator=(RpcMessage&& other) noexcept {
    std::swap(message_, other.message_);
    std::swap(buffers_, other.buffers_);
    return *this;
  }
  ~RpcMessage() {
    if (message_.release != nullptr) message_.release(message_.owner);
  }

  uint64_t id() const { return message_.id; }
  std::string_view payload() const {
    return {static_cast<const char*>(message_.payload), static_cast<size_t>(message_.payload_size)};
  }
  const std::vector<bp_buffer>& buffers() const { return buffers_; }

 private:
  // A shorter struct is an older core's.
  static bp_rpc_message known_part(const bp_rpc_message& given) {
    bp_rpc_message known = {};
    std::memcpy(&known, &given, std::min<size_t>(given.struct_size, sizeof(known)));
    return known;
  }

  bp_rpc_message message_;
  std::vector<bp_buffer> buffers_;
};

// The core's interface for an agent. Copyable; valid as long as the agent.
class RpcHost {
 public:
  explicit RpcHost(const Host& host)
      : host_(static_cast<const bp_rpc_host*>(host.get()->extension(host.get()->ctx, BP_EXT_RPC))) {
    if (host_ == nullptr) {
      throw Failure(BP_UNSUPPORTED, "this core has no remote procedure calls (" BP_EXT_RPC ")");
    }
  }

  uint64_t max_message_bytes() const { return host_->max_message_bytes; }

  // Delivers a message. `keep` holds its memory until the core no longer needs it.
  void received(int32_t from, std::string_view payload, const std::vector<bp_buffer>& buffers,
                std::shared_ptr<void> keep) const {
    received(from, payload, buffers, std::make_unique<std::shared_ptr<void>>(std::move(keep)));
  }
  template <typename Keep>
  void received(int32_t from, std::string_view payload, const std::vector<bp_buffer>& buffers,
                std::unique_ptr<Keep> keep) const {
    const bp_rpc_message message = message_of(payload, buffers, std::move(keep));
    host_->received(host_->ctx, from, &message);
  }
  // Delivers the rest of a message for whose buffers this process has no memory.
  template <typename Keep>
  void refused(int32_t from, std::string_view payload, std::unique_ptr<Keep> keep, const Failure& why) const {
    const bp_rpc_message message = message_of(payload, {}, std::move(keep));
    const bp_error err = report_of(why);
    host_->refused(host_->ctx, from, &message, &err);
  }
  void failed(int32_t to, uint64_t id, const Failure& why) const {
    if (id == 0) return;
    const bp_error err = report_of(why);
    host_->failed(host_->ctx, to, id, &err);
  }
  // peer -1: all peers.
  void lost(int32_t peer, const Failure& why) const {
    const bp_error err = report_of(why);
    host_->lost(host_->ctx, peer, &err);
  }

 private:
  template <typename Keep>
  static bp_rpc_message message_of(std::string_view payload, const std::vector<bp_buffer>& buffers,
                                   std::unique_ptr<Keep> keep) {
    bp_rpc_message message = {};
    message.struct_size = sizeof(bp_rpc_message);
    message.payload = payload.data();
    message.payload_size = payload.size();
    message.buffers = buffers.data();
    message.buffer_count = static_cast<uint32_t>(buffers.size());
    message.owner = keep.release();
    message.release = [](void* owner) { delete static_cast<Keep*>(owner); };
    return message;
  }
  static bp_error report_of(const Failure& why) {
    bp_error err;
    bp_error_init(&err);
    bp_error_set(&err, why.status(), why.native_code(), why.peer_rank(), why.what());
    return err;
  }

  const bp_rpc_host* host_;
};

// This worker's agent. The rules are those of bp_rpc_api.
class RpcAgent {
 public:
  virtual ~RpcAgent() = default;
  virtual void send(int32_t to, RpcMessage message, int64_t timeout_ns) = 0;
  virtual void abort(const Failure& why) noexcept = 0;
  virtual const void* extension(std::string_view) { return nullptr; }
};

namespace detail {

inline RpcAgent& rpc_agent_of(void* self) { return *static_cast<RpcAgent*>(self); }

inline int32_t rpc_send(void* self, int32_t to, const bp_rpc_message* message, int64_t timeout_ns, bp_error* err) {
  return guarded(err, [self, to, message, timeout_ns] {
    rpc_agent_of(self).send(to, RpcMessage(*message), timeout_ns);
    return BP_OK;
  });
}
inline void rpc_abort(void* self, const bp_error* why) noexcept { rpc_agent_of(self).abort(Failure::copy_of(*why)); }
inline void rpc_destroy(void* self) noexcept { delete &rpc_agent_of(self); }
inline const void* rpc_extension(void* self, const char* id) noexcept {
  try {
    return id == nullptr ? nullptr : rpc_agent_of(self).extension(id);
  } catch (...) {
    return nullptr;
  }
}

inline constexpr bp_rpc_api kRpcApi = {sizeof(bp_rpc_api), 0, rpc_send, rpc_abort, rpc_destroy, rpc_extension};

template <typename Description>
std::unique_ptr<RpcAgent> make_rpc_agent(const bp_init& init) {
  if constexpr (Description::kinds == BP_KIND_RPC) {
    return Description::init(Context(init));
  } else {
    return Description::init_rpc(Context(init));
  }
}

template <typename Description>
int32_t init_rpc(const bp_backend* backend, const bp_init* init, bp_agent* agent, bp_error* err) {
  if constexpr (Description::kinds != BP_KIND_RPC) {
    if (init->kind != BP_KIND_RPC) return detail::init<Description>(backend, init, agent, err);
  }
  return guarded(err, [init, agent] {
    require_valid_rank(*init);
    if (init->kind != BP_KIND_RPC) {
      throw Failure(BP_INVALID, std::string(Description::id) + " makes RPC agents, not process groups");
    }
    std::unique_ptr<RpcAgent> made = make_rpc_agent<Description>(*init);
    agent->kind = BP_KIND_RPC;
    agent->api = &kRpcApi;
    agent->rank = init->rank;
    agent->world_size = init->world_size;
    agent->self = made.release();
    return BP_OK;
  });
}

template <typename Description>
requires(Description::kinds == BP_KIND_RPC) struct Tables<Description> {
  static constexpr auto options = pointers(Description::options);
  static constexpr bp_backend backend = {
      sizeof(bp_backend),
      Description::kinds,
      Description::flags,
      static_cast<uint32_t>(Description::options.size()),
      Description::id,
      Description::version,
      Description::summary,
      options.data(),
      nullptr,
      0,
      0,
      &probe<Description>,
      nullptr,
      nullptr,
      &init_rpc<Description>,
      nullptr,
  };
};

template <typename Description>
requires(Description::kinds == (BP_KIND_PROCESS_GROUP | BP_KIND_RPC)) struct Tables<Description> {
  static constexpr bp_backend backend = [] {
    bp_backend both = GroupTables<Description>::backend;
    both.init = &init_rpc<Description>;
    return both;
  }();
};

}  // namespace detail
}  // namespace backplane::sdk
