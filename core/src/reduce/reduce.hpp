// SPDX-License-Identifier: Apache-2.0
//
// Reductions of more than two inputs at once. Dtypes, operations and pointers are as in combine.hpp.
#pragma once

#include <cstdint>

namespace backplane::core {

// What several ranks contribute.
struct Inputs {
  const void* const* data;
  const void* const* scalars;  // null, or for each input null or the element that it is multiplied by first
  uint64_t size;               // how many there are; at least one
};

// out[i] = data[0][i] op data[1][i] op ..., in this order; avg is divided by `divisor`, which others ignore. f16, bf16,
// f8e4m3 and f8e5m2 stay in f32 until they are rounded at the very end, once; the others are as by multiply, combine
// and divide. `out` may be any of the inputs, and otherwise overlaps none. Uses what the processor has.
void reduce(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor, uint64_t count);
// The same, with the same bits; what is computed in f32, for the least processor of the architecture.
void reduce_anywhere(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor,
                     uint64_t count);

}  // namespace backplane::core
