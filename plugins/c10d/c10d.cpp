// SPDX-License-Identifier: Apache-2.0
//
// The backend `c10d`: a backend of torch.distributed, in a Python interpreter within the process.
#include "group.hpp"
#include "python.hpp"

namespace backplane::c10d {
namespace {

// The dtypes for which every backend of torch reduces.
constexpr uint64_t kWhole = BP_BIT(BP_I8) | BP_BIT(BP_U8) | BP_BIT(BP_I32) | BP_BIT(BP_I64);
constexpr uint64_t kReal = BP_BIT(BP_F16) | BP_BIT(BP_F32) | BP_BIT(BP_F64);
constexpr uint64_t kArithmetic = BP_BIT(BP_SUM) | BP_BIT(BP_PROD) | BP_BIT(BP_MIN) | BP_BIT(BP_MAX);
constexpr uint64_t kBits = BP_BIT(BP_BAND) | BP_BIT(BP_BOR) | BP_BIT(BP_BXOR);

struct C10d {
  static constexpr const char* id = "c10d";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "a backend of torch.distributed, in an embedded Python";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_BOUNDED | BP_BACKEND_BLOCKING_INIT;
  static constexpr std::array options = {
      sdk::option({.key = "backend",
                   .default_value = "gloo",
                   .help = "the backend of torch.distributed: gloo, or one that registers with torch",
                   .flags = BP_OPTION_SAME_ON_ALL}),
      sdk::option({.key = "module",
                   .default_value = "",
                   .help = "a Python module to import first, which registers the backend"}),
      sdk::option({.key = "python",
                   .default_value = "",
                   .help = "the Python program that has torch, with its shared library beside it; empty: "
                           "BACKPLANE_PYTHON, else python3 of PATH"}),
  };
  static constexpr std::array capabilities = {
      sdk::moves(BP_SEND),
      sdk::moves(BP_RECV),
      sdk::moves(BP_BARRIER),
      sdk::moves(BP_BROADCAST),
      sdk::moves(BP_GATHER),
      sdk::moves(BP_SCATTER),
      sdk::moves(BP_ALL_GATHER),
      sdk::moves(BP_ALL_TO_ALL),
      sdk::reduces(BP_REDUCE, kWhole | kReal, kArithmetic),
      sdk::reduces(BP_REDUCE, kWhole, kBits),
      sdk::reduces(BP_ALL_REDUCE, kWhole | kReal, kArithmetic),
      sdk::reduces(BP_ALL_REDUCE, kWhole, kBits),
  };
  static void probe(const sdk::Host& host) {
    if (host.get()->extension(host.get()->ctx, BP_EXT_PLAN) != nullptr) {
      throw sdk::Failure(BP_UNSUPPORTED, "it serves only programs that name it, because it starts Python");
    }
    host.log(BP_LOG_INFO, describe_python(""));
  }
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) { return Group::start(context); }
};

}  // namespace
}  // namespace backplane::c10d

BACKPLANE_PLUGIN("Backplane", backplane::c10d::C10d)
