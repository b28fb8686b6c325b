// SPDX-License-Identifier: Apache-2.0
//
// An RPC agent (abi/ext/rpc.h) of a backend, with the process group that it sends over if it needs one.
#pragma once

#include <cstdint>
#include <memory>

#include "backplane/abi/ext/rpc.h"
#include "error.hpp"
#include "group/agent.hpp"
#include "group/group.hpp"
#include "plugin/host.hpp"
#include "plugin/library_use.hpp"
#include "registry/registry.hpp"

namespace backplane::core::rpc {

class Transport {
 public:
  // Receives the agent's reports; the rules are those of bp_rpc_host.
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void received(int32_t from, const bp_rpc_message& message) = 0;
    virtual void failed(int32_t to, uint64_t id, const Error& error) = 0;
    virtual void lost(int32_t peer, const Error& error) = 0;
    virtual void refused(int32_t from, const bp_rpc_message& message, const Error& error) = 0;
  };

  // Throws BP_INVALID unless the backend makes RPC agents.
  static void check_kind(const Member& member);
  // Throws BP_INVALID or BP_UNSUPPORTED if the agent needs a group and cannot send over this one. Does not block.
  static void check_group(const Member& member, const Group& group);
  // The largest message that a worker with these options sends or accepts, in bytes.
  static uint64_t max_message_bytes(const BackendOptions& options);

  // Runs the init handler. `name`: of the worker. `store`: of the group; an interruption of it ends the init. Throws
  // core::Error.
  Transport(const Member& member, const std::shared_ptr<const BackendOptions>& options, const Group& group,
            const std::shared_ptr<Store>& store, const std::string& name, int64_t timeout_ns, Sink* sink);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Takes ownership of the message, also if it throws. `to` must not be this worker. Any thread; does not block.
  void send(int32_t to, const bp_rpc_message& message, int64_t timeout_ns);
  // Nothing is delivered afterwards. Further calls have no effect.
  void abort(const Error& why);

 private:
  void make_inner(const Group& group, const std::shared_ptr<Store>& store, int64_t timeout_ns);
  void check(const Group& group) const;

  const Member& member_;
  Sink& sink_;
  const std::shared_ptr<const BackendOptions> options_;
  std::unique_ptr<core::Agent> inner_;  // outlives the agent over it
  std::unique_ptr<Host> host_;
  bp_rpc_host offered_ = {};
  LibraryUse use_;
  bp_agent agent_ = {};
  const bp_rpc_api* api_ = nullptr;
};

}  // namespace backplane::core::rpc
