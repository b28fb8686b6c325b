// SPDX-License-Identifier: Apache-2.0
//
// `zmq`: sends and receives over libzmq between processes on one or more hosts. The core implements the collectives. It
// is also an RPC agent, with separate connections.
#include "backplane/sdk/rpc.hpp"
#include "group.hpp"
#include "rpc.hpp"

namespace backplane::zmq {
namespace {

struct Zmq {
  static constexpr const char* id = "zmq";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "TCP through libzmq, between processes and machines";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP | BP_KIND_RPC;
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_BOUNDED |
                                    BP_BACKEND_AUTHENTICATES;
  static constexpr std::array options = sdk::joined(kOptions, sdk::kRpcOptions);
  static constexpr std::array capabilities = {sdk::moves(BP_SEND), sdk::moves(BP_RECV)};
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<ZmqGroup>(context);
  }
  static std::unique_ptr<sdk::RpcAgent> init_rpc(const sdk::Context& context) {
    return std::make_unique<RpcAgent>(context);
  }
};

}  // namespace
}  // namespace backplane::zmq

BACKPLANE_PLUGIN("Backplane", backplane::zmq::Zmq)
