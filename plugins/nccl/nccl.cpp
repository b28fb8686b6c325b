// SPDX-License-Identifier: Apache-2.0
//
// `nccl`: the ranks of a group are CUDA devices, and NVIDIA's NCCL carries their data.
#include "backplane/sdk/sdk.hpp"
#include "collective.hpp"
#include "group.hpp"

namespace backplane::nccl {
namespace {

constexpr auto capabilities_in(uint64_t memory, uint64_t dtypes) {
  return std::array{
      sdk::moves(BP_BARRIER),
      sdk::moves(BP_BROADCAST, BP_ALL_DTYPES, memory),
      sdk::reduces(BP_REDUCE, dtypes, kReduceOps, memory),
      sdk::reduces(BP_ALL_REDUCE, dtypes, kReduceOps, memory),
      sdk::moves(BP_GATHER, BP_ALL_DTYPES, memory),
      sdk::moves(BP_GATHERV, BP_ALL_DTYPES, memory),
      sdk::moves(BP_SCATTER, BP_ALL_DTYPES, memory),
      sdk::moves(BP_SCATTERV, BP_ALL_DTYPES, memory),
      sdk::moves(BP_ALL_GATHER, BP_ALL_DTYPES, memory),
      sdk::moves(BP_ALL_GATHERV, BP_ALL_DTYPES, memory),
      sdk::reduces(BP_REDUCE_SCATTER, dtypes, kReduceOps, memory),
      sdk::reduces(BP_REDUCE_SCATTERV, dtypes, kReduceOps, memory),
      sdk::moves(BP_ALL_TO_ALL, BP_ALL_DTYPES, memory),
      sdk::moves(BP_ALL_TO_ALLV, BP_ALL_DTYPES, memory),
      sdk::moves(BP_SEND, BP_ALL_DTYPES, memory),
      sdk::moves(BP_RECV, BP_ALL_DTYPES, memory),
  };
}

constexpr uint64_t kBoth = BP_BIT(BP_HOST) | BP_BIT(BP_CUDA);
constexpr uint64_t kDevice = BP_BIT(BP_CUDA);

// What is less than all of it.
constexpr auto kWithoutF8 = capabilities_in(kBoth, kReducedDtypes & ~kF8Dtypes);
constexpr auto kOnDevice = capabilities_in(kDevice, kReducedDtypes);
constexpr auto kOnDeviceWithoutF8 = capabilities_in(kDevice, kReducedDtypes & ~kF8Dtypes);
constexpr auto kWithoutF8Pointers = sdk::pointers(kWithoutF8);
constexpr auto kOnDevicePointers = sdk::pointers(kOnDevice);
constexpr auto kOnDeviceWithoutF8Pointers = sdk::pointers(kOnDeviceWithoutF8);

std::span<const bp_capability* const> offer(bool stages, bool reduces_f8) {
  if (stages) return reduces_f8 ? std::span<const bp_capability* const>{} : kWithoutF8Pointers;
  return reduces_f8 ? kOnDevicePointers : kOnDeviceWithoutF8Pointers;
}

struct Nccl {
  static constexpr const char* id = "nccl";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "NVIDIA GPUs, through NCCL";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_BOUNDED;
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
  static constexpr auto capabilities = capabilities_in(kBoth, kReducedDtypes);

  static void probe(const sdk::Host& host) {
    const Api& api = open_api("");
    const std::string remark = remark_on_devices(api, count_devices(api));
    if (!remark.empty()) host.log(BP_LOG_INFO, remark);
  }
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<Group>(context, offer);
  }
};

}  // namespace
}  // namespace backplane::nccl

BACKPLANE_PLUGIN("Backplane", backplane::nccl::Nccl)
