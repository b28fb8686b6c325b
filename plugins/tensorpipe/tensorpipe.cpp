// SPDX-License-Identifier: Apache-2.0
//
// `tensorpipe`: torch's TENSORPIPE agent over Debian's libtensorpipe.
#include <array>
#include <memory>

#include "backplane/sdk/rpc.hpp"
#include "backplane/sdk/sdk.hpp"
#include "rpc.hpp"

namespace backplane::tensorpipe {
namespace {

struct TensorPipe {
  static constexpr const char* id = "tensorpipe";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "RPC over TensorPipe: TCP and shared memory";
  static constexpr uint32_t kinds = BP_KIND_RPC;
  static constexpr uint32_t flags = 0;
  static constexpr std::array options = sdk::joined(
      sdk::kRpcOptions,
      std::array{
          sdk::kReceivedMemoryOption,
          sdk::option({.key = "transports",
                       .default_value = "",
                       .help = "transports out of uv, shm, as in uv+shm; empty: shm alone on one host, else both"}),
          sdk::option({.key = "channels",
                       .default_value = "",
                       .help = "channels out of cma, mpt in addition to basic, as in cma+mpt; empty: cma if viable"}),
          sdk::option({.key = "device_maps",
                       .default_value = "",
                       .help = "map of local to remote CUDA devices: worker1:0=1,1=0;worker2:0=0"}),
          sdk::option({.key = "address",
                       .default_value = "",
                       .help = "address at which uv listens, reachable by all workers; empty: the one from which "
                               "this worker reaches the store, else 127.0.0.1"})});
  static constexpr std::array<bp_capability, 0> capabilities = {};
  static std::unique_ptr<sdk::RpcAgent> init(const sdk::Context& context) { return std::make_unique<Agent>(context); }
};

}  // namespace
}  // namespace backplane::tensorpipe

BACKPLANE_PLUGIN("Backplane", backplane::tensorpipe::TensorPipe)
