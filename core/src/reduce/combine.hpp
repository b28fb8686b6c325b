// SPDX-License-Identifier: Apache-2.0
//
// Element-wise reductions on host memory, for all dtypes and reduce operations, by the rules of backplane/abi/types.h.
#pragma once

#include <cstdint>
#include <iterator>

#include "backplane/abi/status.h"
#include "backplane/abi/types.h"

namespace backplane::core {

// Bytes of one element of a dtype, 0 for an unknown dtype.
inline uint64_t dtype_size(uint32_t dtype) { return bp_dtype_size(dtype); }
// Names, "unknown ..." for an unknown value. "f32", "c128".
const char* dtype_name(uint32_t dtype);
// "sum", "premul_sum".
const char* reduce_op_name(uint32_t reduce_op);
// "all_reduce", "send".
const char* op_name(uint32_t kind);
const char* status_name(int32_t status);

namespace detail {
constexpr uint32_t kBitOps = BP_BIT(BP_BAND) | BP_BIT(BP_BOR) | BP_BIT(BP_BXOR);
constexpr uint32_t kForBool = BP_ALL_REDUCE_OPS & ~BP_BIT(BP_AVG);
constexpr uint32_t kForInteger = BP_ALL_REDUCE_OPS;
constexpr uint32_t kForFloat = BP_ALL_REDUCE_OPS & ~kBitOps;
constexpr uint32_t kForComplex = kForFloat & ~(BP_BIT(BP_MIN) | BP_BIT(BP_MAX));
// By value of BP_BOOL ...
inline constexpr uint32_t kReduceOpsOf[] = {
    kForBool,  kForInteger, kForInteger, kForInteger, kForInteger, kForInteger, kForInteger, kForInteger, kForInteger,
    kForFloat, kForFloat,   kForFloat,   kForFloat,   kForFloat,   kForFloat,   kForComplex, kForComplex};
static_assert(std::size(kReduceOpsOf) == BP_DTYPE_COUNT);
}  // namespace detail

// Whether the reduce operation is defined for the dtype (types.h).
inline bool reducible(uint32_t dtype, uint32_t reduce_op) {
  return dtype < BP_DTYPE_COUNT && reduce_op < BP_REDUCE_OP_COUNT &&
         (detail::kReduceOpsOf[dtype] & BP_BIT(reduce_op)) != 0;
}

// Pointers need no alignment. `dtype` and `reduce_op` must be reducible. Functions use the vector extensions of the
// processor; the *_portable functions use none, and give the same bits.

// out[i] = left[i] op right[i]. `out` may be `left` or `right`; otherwise it must not overlap them. avg and premul_sum
// combine like sum. f16, bf16 and fp8 are computed in f32 and rounded to nearest even; small_float.hpp defines
// overflow. Operands give the same bits in either order: a NaN result is always the quiet NaN of the type, and min and
// max treat -0 as less than +0.
void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right, uint64_t count);
void combine_portable(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
                      uint64_t count);

// avg: data[i] /= divisor (integers: rounded toward zero). The divisor must not be 0.
void divide(uint32_t dtype, void* data, uint64_t divisor, uint64_t count);

// premul_sum: out[i] = in[i] * *scalar (one element of dtype). `out` may be `in`; otherwise it must not overlap it.
void multiply(uint32_t dtype, void* out, const void* in, const void* scalar, uint64_t count);

}  // namespace backplane::core
