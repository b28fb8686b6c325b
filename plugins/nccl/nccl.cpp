// SPDX-License-Identifier: Apache-2.0
//
// The backend `nccl`: each rank is a CUDA device, and NVIDIA's NCCL moves the data.
#include "backplane/sdk/sdk.hpp"
#include "collectives_calls.hpp"
#include "group.hpp"
#include "options.hpp"

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

// Subsets of Nccl::capabilities.
constexpr auto kWithoutF8 = capabilities_in(kBoth, kReducedDtypes & ~kF8Dtypes);
constexpr auto kOnDevice = capabilities_in(kDevice, kReducedDtypes);
constexpr auto kOnDeviceWithoutF8 = capabilities_in(kDevice, kReducedDtypes & ~kF8Dtypes);
constexpr auto kWithoutF8Pointers = sdk::pointers(kWithoutF8);
constexpr auto kOnDevicePointers = sdk::pointers(kOnDevice);
constexpr auto kOnDeviceWithoutF8Pointers = sdk::pointers(kOnDeviceWithoutF8);

std::span<const bp_capability* const> select_capabilities(bool stages, bool reduces_f8) {
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
  static constexpr auto options = kOptions;
  static constexpr auto capabilities = capabilities_in(kBoth, kReducedDtypes);

  static void probe(const sdk::Host& host) {
    const Api& api = open_api("");
    const std::string limitation = missing_peer_access(api, count_devices(api));
    if (!limitation.empty()) host.log(BP_LOG_INFO, limitation);
  }
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<Group>(context, select_capabilities);
  }
};

}  // namespace
}  // namespace backplane::nccl

BACKPLANE_PLUGIN("Backplane", backplane::nccl::Nccl)
