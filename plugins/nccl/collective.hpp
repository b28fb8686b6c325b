// SPDX-License-Identifier: Apache-2.0
//
// A collective in the words of NCCL. What NCCL has no function for is a group of those it has: gather, scatter and
// all_to_all of sends and receives, all_gatherv of broadcasts, reduce_scatterv of reductions.
#pragma once

#include <cstdint>

#include "api.hpp"
#include "backplane/abi/op.h"

namespace backplane::nccl {

// What NCCL reduces; the last two (of 8 bits) since 2.24, on devices of compute capability 9.0 or more.
constexpr uint64_t kReducedDtypes = BP_BIT(BP_I8) | BP_BIT(BP_U8) | BP_BIT(BP_I32) | BP_BIT(BP_U32) | BP_BIT(BP_I64) |
                                    BP_BIT(BP_U64) | BP_BIT(BP_F16) | BP_BIT(BP_F32) | BP_BIT(BP_F64) |
                                    BP_BIT(BP_BF16) | BP_BIT(BP_F8E4M3) | BP_BIT(BP_F8E5M2);
constexpr uint64_t kF8Dtypes = BP_BIT(BP_F8E4M3) | BP_BIT(BP_F8E5M2);
constexpr uint64_t kReduceOps =
    BP_BIT(BP_SUM) | BP_BIT(BP_PROD) | BP_BIT(BP_MIN) | BP_BIT(BP_MAX) | BP_BIT(BP_AVG) | BP_BIT(BP_PREMUL_SUM);

// Who takes part, where.
struct Place {
  const Api& api;
  int32_t rank;
  int32_t size;
  cudaStream_t stream;
};

// Is there anything to do on this rank? (Of a collective of no elements there is not.)
bool is_empty(const bp_op& op);

// Enqueues this rank's own copies of a collective: its block from the input to the output and, for an all_to_all in
// place, the input to `aside`, device memory of the same size (otherwise NULL). Call before start_collective.
void copy_blocks(const Place& place, const bp_op& op, void* aside);
// Makes NCCL's calls for a collective whose buffers are device memory, and no other. `copy`: the `aside` of
// copy_blocks; `token`: 4 bytes of device memory, for a barrier. Between group_start and group_end; throws. *op is the
// premul_sum that was made for it, to be destroyed later, or ncclNumOps.
void start_collective(const Place& place, ncclComm_t comm, const bp_op& op, void* copy, void* token, ncclRedOp_t* made);

}  // namespace backplane::nccl
