// SPDX-License-Identifier: Apache-2.0
//
// Sums, products, quotients and reductions of f16, bf16, f8e4m3 and f8e5m2, 16 elements at a time, with the same bits
// as elements.hpp. Call only on x86-64 processors with AVX2 and F16C. Pointers and counts are as in combine.hpp.
#pragma once

#include <cstdint>

#include "reduce/reduce.hpp"

namespace backplane::core::avx2 {

// False, without effect, for other dtypes and operations.
bool combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right, uint64_t count);
bool divide(uint32_t dtype, void* data, uint64_t divisor, uint64_t count);
bool reduce(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor, uint64_t count);
bool multiply(uint32_t dtype, void* out, const void* in, const void* scalar, uint64_t count);

}  // namespace backplane::core::avx2
