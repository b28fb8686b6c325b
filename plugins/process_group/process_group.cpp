// SPDX-License-Identifier: Apache-2.0
//
// `process_group`: RPC over the sends and receives of any backend.
#include <array>

#include "backplane/sdk/sdk.hpp"
#include "rpc.hpp"

namespace backplane::process_group {
namespace {

struct ProcessGroupRpc {
  static constexpr const char* id = "process_group";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "RPC over the messages of any process group";
  static constexpr uint32_t kinds = BP_KIND_RPC;
  // The core requires authentication of the group's backend.
  static constexpr uint32_t flags = BP_BACKEND_RPC_OVER_GROUP | BP_BACKEND_AUTHENTICATES;
  static constexpr std::array options = sdk::joined(
      sdk::kRpcOptions,
      std::array{sdk::kReceivedMemoryOption, sdk::option({.type = BP_OPTION_INT,
                                                          .key = "num_send_recv_threads",
                                                          .default_value = "4",
                                                          .help = "threads that wait for messages in transit",
                                                          .min = 1,
                                                          .max = 256})});
  static std::unique_ptr<sdk::RpcAgent> init(const sdk::Context& context) { return std::make_unique<Agent>(context); }
};

}  // namespace
}  // namespace backplane::process_group

BACKPLANE_PLUGIN("Backplane", backplane::process_group::ProcessGroupRpc)
