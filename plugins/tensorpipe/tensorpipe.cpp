// SPDX-License-Identifier: Apache-2.0
//
// `tensorpipe`: torch's TENSORPIPE agent, over Debian's libtensorpipe.
#include <array>

#include "agent.hpp"
#include "backplane/sdk/rpc.hpp"
#include "backplane/sdk/sdk.hpp"

namespace backplane::tensorpipe_plugin {
namespace {

struct TensorPipe {
  static constexpr const char* id = "tensorpipe";
  static constexpr const char* version = "1.0.0";
  static constexpr const char* summary = "RPC over TensorPipe: TCP and shared memory";
  static constexpr uint32_t kinds = BP_KIND_RPC;
  static constexpr uint32_t flags = 0;
  static constexpr std::array options = {
      sdk::option({.type = BP_OPTION_INT,
                   .key = "num_worker_threads",
                   .default_value = "16",
                   .help = "functions that run at a time, not counting those that wait for calls of their own",
                   .min = 1,
                   .max = 4096}),
      sdk::option({.type = BP_OPTION_INT,
                   .key = "max_message_bytes",
                   .default_value = "4294967296",
                   .help = "the largest message that is sent or taken",
                   .min = 65536,
                   .max = INT64_C(1) << 40}),
      sdk::option({.key = "transports",
                   .default_value = "",
                   .help = "which of uv, shm, as in uv+shm; empty: all that are viable"}),
      sdk::option({.key = "channels",
                   .default_value = "",
                   .help = "which of basic, cma, mpt, as in basic+cma; empty: basic and cma if viable"}),
      sdk::option({.key = "device_maps",
                   .default_value = "",
                   .help = "which device here is which there: worker1:0=1,1=0;worker2:0=0"}),
      sdk::option({.key = "address",
                   .default_value = "127.0.0.1",
                   .help = "this worker's address, at which uv listens; others must reach it"})};
  static constexpr std::array<bp_capability, 0> capabilities = {};
  static std::unique_ptr<sdk::RpcAgent> init(const sdk::Context& context) { return std::make_unique<Agent>(context); }
};

}  // namespace
}  // namespace backplane::tensorpipe_plugin

BACKPLANE_PLUGIN("Backplane", backplane::tensorpipe_plugin::TensorPipe)
