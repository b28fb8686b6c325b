// SPDX-License-Identifier: Apache-2.0
//
// `shm`: ranks on one host that share a memory segment.
#include <unistd.h>

#include <algorithm>

#include "backplane/abi/ext/plan.h"
#include "group.hpp"
#include "process.hpp"

namespace backplane::shm {
namespace {

const bp_plan_api* plan_of(const sdk::Host& host) {
  return static_cast<const bp_plan_api*>(host.get()->extension(host.get()->ctx, BP_EXT_PLAN));
}

struct Shm {
  static constexpr const char* id = "shm";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "shared memory between processes of one host";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS | BP_BACKEND_BOUNDED |
                                    BP_BACKEND_AUTHENTICATES;
  static constexpr std::array options = {
      sdk::option({.type = BP_OPTION_DURATION,
                   .key = "spin",
                   .default_value = "20us",
                   .help = "how long a waiting rank spins; 0 with more ranks than processors",
                   .min = 0,
                   .max = 1e9}),
      sdk::option({.type = BP_OPTION_DURATION,
                   .key = "yield",
                   .default_value = "200us",
                   .help = "how long it then yields the processor between polls, before it sleeps",
                   .min = 0,
                   .max = 1e9}),
      sdk::option({.type = BP_OPTION_BYTES,
                   .key = "staging",
                   .default_value = "0",
                   .help = "shared memory per rank for data of collectives, and again for messages, 512K to 16M; 0: by "
                           "the caches and the number of ranks (`backplane explain`); rank 0's value holds",
                   .min = 0,
                   .max = 16 << 20}),
      sdk::option({.type = BP_OPTION_ENUM,
                   .key = "cma",
                   .default_value = "auto",
                   .help = "reading ordinary buffers in the process of their rank (process_vm_readv): auto for sizes "
                           "at which it is faster, not on AMD; on wherever permitted; off never",
                   .choices = "auto|on|off"}),
  };
  static constexpr std::array capabilities = {
      sdk::moves(BP_BARRIER),
      sdk::moves(BP_BROADCAST),
      sdk::reduces(BP_REDUCE, BP_ALL_DTYPES, BP_ALL_REDUCE_OPS),
      sdk::reduces(BP_ALL_REDUCE, BP_ALL_DTYPES, BP_ALL_REDUCE_OPS),
      sdk::moves(BP_GATHER),
      sdk::moves(BP_GATHERV),
      sdk::moves(BP_SCATTER),
      sdk::moves(BP_SCATTERV),
      sdk::moves(BP_ALL_GATHER),
      sdk::moves(BP_ALL_GATHERV),
      sdk::reduces(BP_REDUCE_SCATTER, BP_ALL_DTYPES, BP_ALL_REDUCE_OPS),
      sdk::reduces(BP_REDUCE_SCATTERV, BP_ALL_DTYPES, BP_ALL_REDUCE_OPS),
      sdk::moves(BP_ALL_TO_ALL),
      sdk::moves(BP_ALL_TO_ALLV),
      sdk::moves(BP_SEND),
      sdk::moves(BP_RECV),
  };

  static void probe(const sdk::Host& host) {
    if (boot_id().empty()) {
      throw sdk::Failure(BP_UNSUPPORTED,
                         "cannot read /proc/sys/kernel/random/boot_id, which tells whether ranks share "
                         "a host; mount /proc");
    }
    try {
      const bp_plan_api* const plan = plan_of(host);
      const int32_t ranks = plan == nullptr ? 2 : std::max(2, plan->world_size);
      check_segment(ranks);
      host.log(BP_LOG_INFO, (plan == nullptr ? "2 ranks: " : "") + describe_memory(default_layout(ranks)));
    } catch (const sdk::Failure& why) {
      throw sdk::Failure(BP_UNSUPPORTED, why.what(), -1, why.native_code());
    }
  }
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) {
    return std::make_unique<Group>(context);
  }
};

}  // namespace
}  // namespace backplane::shm

BACKPLANE_PLUGIN("Backplane", backplane::shm::Shm)
