// SPDX-License-Identifier: Apache-2.0
//
// NCCL's calls for a collective. Collectives that NCCL lacks are groups of calls: gather, scatter and all_to_all of
// sends and receives, all_gatherv of broadcasts, reduce_scatterv of reductions.
#pragma once

#include <cstdint>

#include "api.hpp"
#include "backplane/abi/op.h"

namespace backplane::nccl {

// The dtypes that NCCL reduces; the 8-bit floats since 2.24, on devices of compute capability 9.0 or more.
constexpr uint64_t kReducedDtypes = BP_BIT(BP_I8) | BP_BIT(BP_U8) | BP_BIT(BP_I32) | BP_BIT(BP_U32) | BP_BIT(BP_I64) |
                                    BP_BIT(BP_U64) | BP_BIT(BP_F16) | BP_BIT(BP_F32) | BP_BIT(BP_F64) |
                                    BP_BIT(BP_BF16) | BP_BIT(BP_F8E4M3) | BP_BIT(BP_F8E5M2);
constexpr uint64_t kF8Dtypes = BP_BIT(BP_F8E4M3) | BP_BIT(BP_F8E5M2);
constexpr uint64_t kReduceOps =
    BP_BIT(BP_SUM) | BP_BIT(BP_PROD) | BP_BIT(BP_MIN) | BP_BIT(BP_MAX) | BP_BIT(BP_AVG) | BP_BIT(BP_PREMUL_SUM);

struct CollectiveContext {
  const Api& api;
  int32_t rank;
  int32_t size;
  cudaStream_t stream;
};

// True for a collective without elements, which needs no call. All ranks agree on it.
bool is_empty(const bp_op& op);

// Enqueues this rank's own copies: its block from the input to the output, and for an all_to_all in place the input to
// `input_copy`, device memory of the same size (NULL otherwise). Call before enqueue_collective.
void enqueue_own_copies(const CollectiveContext& context, const bp_op& op, void* input_copy);
// Makes NCCL's calls for a collective on device buffers. Call between group_start and group_end. `input_copy`: as
// above. `barrier_buffer`: 4 bytes of device memory. *premul_sum: set to a reduce op created for it, which the caller
// destroys later. Throws.
void enqueue_collective(const CollectiveContext& context, ncclComm_t comm, const bp_op& op, void* input_copy,
                        void* barrier_buffer, ncclRedOp_t* premul_sum);

}  // namespace backplane::nccl
