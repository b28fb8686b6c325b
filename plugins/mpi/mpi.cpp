// SPDX-License-Identifier: Apache-2.0
//
// The backend `mpi`: any MPI library, opened at run time.
#include "group.hpp"
#include "messages.hpp"

namespace backplane::mpi {
namespace {

// MPICH 4.0 compares unsigned bytes as signed ones, so the core has the minimum and maximum of unsigned numbers.
constexpr uint64_t kSigned = BP_BIT(BP_BOOL) | BP_BIT(BP_I8) | BP_BIT(BP_I16) | BP_BIT(BP_I32) | BP_BIT(BP_I64);
constexpr uint64_t kWhole = kSigned | BP_BIT(BP_U8) | BP_BIT(BP_U16) | BP_BIT(BP_U32) | BP_BIT(BP_U64);
constexpr uint64_t kSignedOps = BP_BIT(BP_MIN) | BP_BIT(BP_MAX);
constexpr uint64_t kWholeOps = BP_BIT(BP_PROD) | BP_BIT(BP_BAND) | BP_BIT(BP_BOR) | BP_BIT(BP_BXOR);
// MPI leaves open what the minimum of a NaN is, and how complex numbers are multiplied.
constexpr uint64_t kReal = BP_BIT(BP_F32) | BP_BIT(BP_F64);
constexpr uint64_t kComplex = BP_BIT(BP_C64) | BP_BIT(BP_C128);
// Open MPI 4 adds integers of 8 and 16 bits with saturation where the processor has AVX.
constexpr uint64_t kNarrow = BP_BIT(BP_I8) | BP_BIT(BP_I16) | BP_BIT(BP_U8) | BP_BIT(BP_U16);
constexpr uint64_t kAdded = (kWhole & ~kNarrow) | kReal | kComplex;

struct Mpi {
  static constexpr const char* id = "mpi";
  static constexpr const char* version = BACKPLANE_PLUGIN_VERSION;
  static constexpr const char* summary = "any MPI: Open MPI, MPICH, Intel MPI, and libraries with the ABI of MPI 5";
  static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
  static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG |
                                    BP_BACKEND_AUTONOMOUS | BP_BACKEND_BOUNDED | BP_BACKEND_BLOCKING_INIT |
                                    BP_BACKEND_ONE_WORLD;
  static constexpr uint32_t tag_bits = kTagBits;
  static constexpr std::array options = {
      sdk::option({.key = "library",
                   .help = "MPI's file; empty: BACKPLANE_MPI_LIBRARY, else one that the process has loaded, else that "
                           "of the launcher"}),
      sdk::option({.type = BP_OPTION_BOOL,
                   .key = "native",
                   .default_value = "true",
                   .help = "collectives of MPI; false: those of the core, over MPI's messages",
                   .flags = BP_OPTION_SAME_ON_ALL}),
      sdk::option({.type = BP_OPTION_DURATION,
                   .key = "direct",
                   .default_value = "0",
                   .help =
                       "more than 0: MPI works on the program's memory instead of copies, and the process ends if MPI "
                       "does not return it in this time after an abort, a timeout or a cancel"}),
  };
  static constexpr std::array capabilities = {
      sdk::moves(BP_SEND),
      sdk::moves(BP_RECV),
      sdk::moves(BP_BARRIER),
      sdk::moves(BP_BROADCAST),
      sdk::moves(BP_GATHER),
      sdk::moves(BP_GATHERV),
      sdk::moves(BP_SCATTER),
      sdk::moves(BP_SCATTERV),
      sdk::moves(BP_ALL_GATHER),
      sdk::moves(BP_ALL_GATHERV),
      sdk::moves(BP_ALL_TO_ALL),
      sdk::moves(BP_ALL_TO_ALLV),
      sdk::reduces(BP_REDUCE, kWhole, kWholeOps),
      sdk::reduces(BP_REDUCE, kSigned, kSignedOps),
      sdk::reduces(BP_REDUCE, kReal, BP_BIT(BP_PROD)),
      sdk::reduces(BP_REDUCE, kAdded, BP_BIT(BP_SUM)),
      sdk::reduces(BP_ALL_REDUCE, kWhole, kWholeOps),
      sdk::reduces(BP_ALL_REDUCE, kSigned, kSignedOps),
      sdk::reduces(BP_ALL_REDUCE, kReal, BP_BIT(BP_PROD)),
      sdk::reduces(BP_ALL_REDUCE, kAdded, BP_BIT(BP_SUM)),
      sdk::reduces(BP_REDUCE_SCATTER, kWhole, kWholeOps),
      sdk::reduces(BP_REDUCE_SCATTER, kSigned, kSignedOps),
      sdk::reduces(BP_REDUCE_SCATTER, kReal, BP_BIT(BP_PROD)),
      sdk::reduces(BP_REDUCE_SCATTER, kAdded, BP_BIT(BP_SUM)),
      sdk::reduces(BP_REDUCE_SCATTERV, kWhole, kWholeOps),
      sdk::reduces(BP_REDUCE_SCATTERV, kSigned, kSignedOps),
      sdk::reduces(BP_REDUCE_SCATTERV, kReal, BP_BIT(BP_PROD)),
      sdk::reduces(BP_REDUCE_SCATTERV, kAdded, BP_BIT(BP_SUM)),
  };
  static void probe(const sdk::Host& host) {
    if (host.get()->extension(host.get()->ctx, BP_EXT_PLAN) != nullptr) {
      throw sdk::Failure(BP_UNSUPPORTED, "it serves only programs that name it, because it initialises MPI");
    }
    host.log(BP_LOG_INFO, World::describe(""));
  }
  static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context) { return Group::start(context); }
  static void finalize() { World::finalize(); }
};

}  // namespace
}  // namespace backplane::mpi

BACKPLANE_PLUGIN("Backplane", backplane::mpi::Mpi)
