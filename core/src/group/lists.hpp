// SPDX-License-Identifier: Apache-2.0
//
// Collectives with a list of W buffers in place of one buffer of N*W elements.
#pragma once

#include <functional>

#include "backplane/abi/op.h"

namespace backplane::core {

// An operation on one buffer, and what moves its result to the caller's (may be empty). It keeps the memory.
struct Gathered {
  bp_op op;
  std::function<void()> deliver;
};

// `inputs` and `outputs`: world_size buffers each, or NULL. Throws core::Error.
Gathered gather_lists(const bp_op& op, int32_t rank, int32_t world_size, const bp_buffer* inputs,
                      const bp_buffer* outputs);

}  // namespace backplane::core
