// SPDX-License-Identifier: Apache-2.0
//
// `zmq` and its older names: sends and receives over libzmq between processes on one or more hosts. The core implements
// the collectives. `zmq` is also an RPC agent, with separate connections.
#include "backplane/sdk/rpc.hpp"
#include "group.hpp"
#include "rpc.hpp"

namespace backplane::zmq {
namespace {

struct Common {
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_BOUNDED |
                                    BP_BACKEND_AUTHENTICATES;
  static constexpr std::array options = kOptions;
  static constexpr std::array capabilities = {sdk::moves(BP_SEND), sdk::moves(BP_RECV)};
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<ZmqGroup>(context);
  }
};

struct Zmq : Common {
  static constexpr const char* id = "zmq";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP | BP_KIND_RPC;
  static constexpr std::array options = sdk::joined(kOptions, sdk::kRpcOptions);
  static std::unique_ptr<sdk::RpcAgent> init_rpc(const sdk::Context& context) {
    return std::make_unique<RpcAgent>(context);
  }
  static constexpr const char* summary = "TCP through libzmq, between processes and machines";
};

struct HfZmq : Common {
  static constexpr const char* id = "hf_zmq";
  static constexpr const char* summary = "zmq under the name hfai.distributed gives it";
};

// For use inside libraries: the group of the whole program stays what it is.
struct HfZmqLocal : Common {
  static constexpr const char* id = "hf_zmq_local";
  static constexpr const char* summary = "zmq, leaving the process-wide default group alone";
  static constexpr uint32_t flags = Common::flags | BP_BACKEND_LOCAL;
};

struct HfBarrier : Common {
  static constexpr const char* id = "hf_barrier";
  static constexpr const char* summary = "zmq under the old name HF_BARRIER_BACKEND";
};

}  // namespace
}  // namespace backplane::zmq

BACKPLANE_PLUGIN("Backplane", backplane::zmq::Zmq, backplane::zmq::HfZmq, backplane::zmq::HfZmqLocal,
                 backplane::zmq::HfBarrier)
