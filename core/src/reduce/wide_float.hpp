// SPDX-License-Identifier: Apache-2.0
//
// Sums, products, quotients and reductions of f16, bf16, f8e4m3 and f8e5m2, 16 elements at a time, with the bits of
// elements.hpp. For processors of x86-64 with AVX2 and F16C: elsewhere these functions are not to be called. Pointers
// and counts are as in combine.hpp.
#pragma once

#include <cstdint>

#include "reduce/reduce.hpp"

namespace backplane::core::wide {

// True if the operation is one of those above; otherwise nothing was done.
bool combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right, uint64_t count);
bool divide(uint32_t dtype, void* data, uint64_t divisor, uint64_t count);
bool reduce(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor, uint64_t count);
bool multiply(uint32_t dtype, void* out, const void* in, const void* scalar, uint64_t count);

}  // namespace backplane::core::wide
