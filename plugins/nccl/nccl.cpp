// SPDX-License-Identifier: Apache-2.0
//
// `nccl`: the ranks of a group are CUDA devices, and NVIDIA's NCCL carries their data.
#include "backplane/sdk/sdk.hpp"
#include "collective.hpp"
#include "group.hpp"

namespace backplane::nccl {
namespace {

constexpr auto capabilities_in(uint64_t memory) {
  return std::array{
      sdk::moves(BP_BARRIER),
      sdk::moves(BP_BROADCAST, BP_ALL_DTYPES, memory),
      sdk::reduces(BP_REDUCE, kReducedDtypes, kReduceOps, memory),
      sdk::reduces(BP_ALL_REDUCE, kReducedDtypes, kReduceOps, memory),
      sdk::moves(BP_GATHER, BP_ALL_DTYPES, memory),
      sdk::moves(BP_GATHERV, BP_ALL_DTYPES, memory),
      sdk::moves(BP_SCATTER, BP_ALL_DTYPES, memory),
      sdk::moves(BP_SCATTERV, BP_ALL_DTYPES, memory),
      sdk::moves(BP_ALL_GATHER, BP_ALL_DTYPES, memory),
      sdk::moves(BP_ALL_GATHERV, BP_ALL_DTYPES, memory),
      sdk::reduces(BP_REDUCE_SCATTER, kReducedDtypes, kReduceOps, memory),
      sdk::reduces(BP_REDUCE_SCATTERV, kReducedDtypes, kReduceOps, memory),
      sdk::moves(BP_ALL_TO_ALL, BP_ALL_DTYPES, memory),
      sdk::moves(BP_ALL_TO_ALLV, BP_ALL_DTYPES, memory),
      sdk::moves(BP_SEND, BP_ALL_DTYPES, memory),
      sdk::moves(BP_RECV, BP_ALL_DTYPES, memory),
  };
}

// Of a group that stages no host buffers.
constexpr auto kDeviceOnly = capabilities_in(BP_BIT(BP_CUDA));
constexpr auto kDeviceOnlyPointers = sdk::pointers(kDeviceOnly);

struct Nccl {
  static constexpr const char* id = "nccl";
  static constexpr const char* version = "0.1.0";
  static constexpr const char* summary = "NVIDIA GPUs, through NCCL";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags =
      BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_PUNCTUAL;
  static constexpr std::array options = {
      sdk::option({.key = "device",
                   .default_value = "",
                   .help =
                       "ordinal of this rank's device; 'rank': the rank modulo the devices there are; empty: as the "
                       "program says"}),
      sdk::option({.type = BP_OPTION_BOOL,
                   .key = "stage",
                   .default_value = "false",
                   .help = "take host buffers too, and copy them to the device and back",
                   .flags = BP_OPTION_SAME_ON_ALL}),
      sdk::option({.type = BP_OPTION_INT,
                   .key = "max_ctas",
                   .default_value = "0",
                   .help = "how many blocks of the device NCCL may use; 0: as it likes",
                   .min = 0,
                   .max = 64}),
      sdk::option({.key = "address",
                   .default_value = "127.0.0.1",
                   .help =
                       "numeric address of this host that the others reach, for what ranks agree about messages; NCCL "
                       "finds its own (NCCL_SOCKET_IFNAME)"}),
      sdk::option({.key = "library",
                   .default_value = "",
                   .help = "NCCL's file; empty: BACKPLANE_NCCL_LIBRARY, else libnccl.so.2"}),
  };
  static constexpr auto capabilities = capabilities_in(BP_BIT(BP_HOST) | BP_BIT(BP_CUDA));

  static void probe(const sdk::Host&) { count_devices(open_api("")); }
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<Group>(context, kDeviceOnlyPointers);
  }
};

}  // namespace
}  // namespace backplane::nccl

BACKPLANE_PLUGIN("Backplane", backplane::nccl::Nccl)
