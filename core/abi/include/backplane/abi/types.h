/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types, reduce operations, operation kinds and memory kinds. The values are wire and ABI constants: they are
 * never reused or renumbered. BP_BIT(value) is the bit of a value in the 64-bit masks of bp_capability.
 */
#ifndef BACKPLANE_ABI_TYPES_H
#define BACKPLANE_ABI_TYPES_H

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_BIT(value) (UINT64_C(1) << (value))

/* Element types. Multi-byte elements are little endian. */
enum {
  BP_BOOL = 0, /* 1 byte, 0 or 1 */
  BP_I8 = 1,
  BP_U8 = 2,
  BP_I16 = 3,
  BP_U16 = 4,
  BP_I32 = 5,
  BP_U32 = 6,
  BP_I64 = 7,
  BP_U64 = 8,
  BP_F16 = 9,   /* IEEE 754 binary16 */
  BP_BF16 = 10, /* bfloat16 */
  BP_F32 = 11,
  BP_F64 = 12,
  BP_F8E4M3 = 13, /* OCP 8-bit float E4M3: no infinities, one NaN per sign, largest finite value 448 */
  BP_F8E5M2 = 14, /* OCP 8-bit float E5M2: IEEE-like, with infinities */
  BP_C64 = 15,    /* two f32: real, imaginary */
  BP_C128 = 16,   /* two f64: real, imaginary */
  BP_DTYPE_COUNT = 17
};
#define BP_ALL_DTYPES (BP_BIT(BP_DTYPE_COUNT) - 1)

/* Bytes of one element, 0 if there is no such dtype. */
static inline uint64_t bp_dtype_size(uint32_t dtype) {
  static const uint8_t sizes[BP_DTYPE_COUNT] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 8, 16};
  return dtype < BP_DTYPE_COUNT ? sizes[dtype] : 0;
}

/* Reduce operations. Integer sums and products wrap. Bool: sum and max are or, prod and min are and, avg is refused.
 * avg is the sum divided by the world size (integers: quotient rounded toward zero). Floating-point sums and products
 * follow IEEE 754, including infinities, NaN and signed zeros, with at most one rounding error per operation. min and
 * max return NaN if either operand is NaN. min and max are refused for complex types, bit operations for floating and
 * complex types. premul_sum first multiplies each rank's input by that rank's bp_op.scalar. */
enum {
  BP_SUM = 0,
  BP_PROD = 1,
  BP_MIN = 2,
  BP_MAX = 3,
  BP_AVG = 4,
  BP_BAND = 5,
  BP_BOR = 6,
  BP_BXOR = 7,
  BP_PREMUL_SUM = 8,
  BP_REDUCE_OP_COUNT = 9
};
#define BP_ALL_REDUCE_OPS (BP_BIT(BP_REDUCE_OP_COUNT) - 1)

/* Operation kinds; op.h defines the buffers and counts of each. */
enum {
  BP_BARRIER = 0,
  BP_BROADCAST = 1,
  BP_REDUCE = 2,
  BP_ALL_REDUCE = 3,
  BP_GATHER = 4,
  BP_GATHERV = 5,
  BP_SCATTER = 6,
  BP_SCATTERV = 7,
  BP_ALL_GATHER = 8,
  BP_ALL_GATHERV = 9,
  BP_REDUCE_SCATTER = 10,
  BP_REDUCE_SCATTERV = 11,
  BP_ALL_TO_ALL = 12,
  BP_ALL_TO_ALLV = 13,
  BP_SEND = 14,
  BP_RECV = 15,
  BP_SCAN = 16,
  BP_EXSCAN = 17,
  BP_OP_COUNT = 18
};

/* Mask of the kinds that reduce. */
#define BP_REDUCTIONS                                                                                   \
  (BP_BIT(BP_REDUCE) | BP_BIT(BP_ALL_REDUCE) | BP_BIT(BP_REDUCE_SCATTER) | BP_BIT(BP_REDUCE_SCATTERV) | \
   BP_BIT(BP_SCAN) | BP_BIT(BP_EXSCAN))

/* The memory that holds a buffer. */
enum {
  BP_HOST = 0, /* ordinary memory of this process; device ordinal 0 */
  BP_CUDA = 1, /* memory of a CUDA device, with its ordinal */
  BP_MEMORY_COUNT = 2
};

#ifdef __cplusplus
}
#endif

#endif
