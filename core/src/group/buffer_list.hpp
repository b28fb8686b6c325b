// SPDX-License-Identifier: Apache-2.0
//
// Collectives on a list of W buffers of N elements, performed as collectives on one buffer of N*W elements.
#pragma once

#include <functional>

#include "backplane/abi/op.h"

namespace backplane::core {

// An operation on one buffer. `unpack` copies its result to the list of outputs and owns the buffer's memory.
struct PackedOp {
  bp_op op;
  std::function<void()> unpack;
};

// `inputs` and `outputs`: world_size buffers each, or NULL. Copies the inputs unless they are adjacent. Throws
// core::Error.
PackedOp pack_lists(const bp_op& op, int32_t rank, int32_t world_size, const bp_buffer* inputs,
                    const bp_buffer* outputs);

}  // namespace backplane::core
