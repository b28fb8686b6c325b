// SPDX-License-Identifier: Apache-2.0
//
// Checks an operation against the table of abi/op.h before any plugin sees it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backplane/abi/op.h"

namespace backplane::core {

// An operation that is ready for a backend, with the displacements that the caller left out.
struct ValidOp {
  bp_op op;
  uint64_t count = 0;     // N of the table; for v-variants this rank's own part (for messages and the recorder)
  uint64_t per_rank = 0;  // schedules: Problem::count
  int32_t other = -1;     // root or peer, -1 if the kind has none
  std::vector<uint64_t> in_displs;
  std::vector<uint64_t> out_displs;

  // After a copy of `other`: points the displacements that were made up at this object's own.
  void adopt(const ValidOp& other) {
    if (op.in_displs == other.in_displs.data() && op.in_displs != nullptr) op.in_displs = in_displs.data();
    if (op.out_displs == other.out_displs.data() && op.out_displs != nullptr) op.out_displs = out_displs.data();
  }
};

// Copies *op into *valid, checked and normalised: in-place broadcasts have input and output, unused buffers are empty,
// count arrays that do not matter on this rank are NULL. Throws core::Error (BP_INVALID) with one sentence.
void validate(const bp_op& op, int32_t rank, int32_t world_size, ValidOp* valid);

// Is the kind a reduction?
inline bool reduces(uint32_t kind) { return (BP_REDUCTIONS & BP_BIT(kind)) != 0; }

// Do all ranks take part?
inline bool collective(uint32_t kind) { return kind != BP_SEND && kind != BP_RECV; }

// "all_reduce (f32 x 1024)", "send (u8 x 4) to rank 2": for messages.
std::string describe(const bp_op& op, uint64_t count, int32_t other);

}  // namespace backplane::core
