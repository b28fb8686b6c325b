// SPDX-License-Identifier: Apache-2.0
//
// Reductions of any number of inputs. Dtypes, operations and pointers are as in combine.hpp.
#pragma once

#include <cstdint>

namespace backplane::core {

struct Inputs {
  const void* const* data;
  const void* const* scalars;  // NULL, or for each input NULL or the element by which it is multiplied first
  uint64_t size;               // number of inputs, at least 1
};

// out[i] = data[0][i] op data[1][i] op ..., in this order. avg divides by `divisor`; other operations ignore it. f16,
// bf16, f8e4m3 and f8e5m2 are computed in f32 and rounded once, at the end; other dtypes like multiply, combine and
// divide. `out` may be one of the inputs; otherwise it must not overlap them.
void reduce(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor, uint64_t count);
// The same, with the same bits. Computations in f32 use no vector extensions.
void reduce_portable(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor,
                     uint64_t count);

}  // namespace backplane::core
