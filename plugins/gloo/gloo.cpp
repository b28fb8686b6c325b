// SPDX-License-Identifier: Apache-2.0
//
// The backends `gloo` and `tcp`: one implementation over the system's libgloo and its TCP transport.
#include "group.hpp"

namespace backplane::gloo {
namespace {

constexpr uint32_t kReduceOps = BP_BIT(BP_SUM) | BP_BIT(BP_PROD) | BP_BIT(BP_MIN) | BP_BIT(BP_MAX) | BP_BIT(BP_BAND) |
                                BP_BIT(BP_BOR) | BP_BIT(BP_BXOR);

struct Common {
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags =
      BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_BOUNDED;
  static constexpr std::array options = {
      sdk::option(
          {.key = "iface",
           .help = "network interface to listen on; empty: GLOO_SOCKET_IFNAME, else chosen by rule and logged"}),
      sdk::option({.key = "address", .help = "address or name of this host to listen on, instead of iface"}),
      sdk::option({.type = BP_OPTION_INT,
                   .key = "threads",
                   .default_value = "2",
                   .help = "number of asynchronous collectives that run concurrently",
                   .min = 1,
                   .max = 64}),
      sdk::option({.type = BP_OPTION_ENUM,
                   .key = "algorithm",
                   .default_value = "auto",
                   .help = "algorithm of all_reduce; auto selects by size and number of ranks",
                   .choices = "auto|ring|bcube|direct",
                   .flags = BP_OPTION_SAME_ON_ALL}),
  };
  static constexpr std::array capabilities = {
      sdk::moves(BP_BARRIER),
      sdk::moves(BP_BROADCAST),
      sdk::reduces(BP_REDUCE, BP_ALL_DTYPES, kReduceOps),
      sdk::reduces(BP_ALL_REDUCE, BP_ALL_DTYPES, kReduceOps),
      sdk::moves(BP_GATHER),
      sdk::moves(BP_SCATTER),
      sdk::moves(BP_ALL_GATHER),
      sdk::moves(BP_ALL_GATHERV),
      sdk::moves(BP_ALL_TO_ALL),
      sdk::moves(BP_ALL_TO_ALLV),
      sdk::moves(BP_SEND),
      sdk::moves(BP_RECV),
  };
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) { return Group::start(context); }
};

struct Gloo : Common {
  static constexpr const char* id = "gloo";
  static constexpr const char* summary = "collectives of libgloo over TCP";
};

struct Tcp : Common {
  static constexpr const char* id = "tcp";
  static constexpr const char* summary = "alias of gloo, named after torch.distributed's first backend";
};

}  // namespace
}  // namespace backplane::gloo

BACKPLANE_PLUGIN("Backplane", backplane::gloo::Gloo, backplane::gloo::Tcp)
