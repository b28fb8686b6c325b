/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.reduce/1", an extension of the host: the core's element-wise reductions on host memory, so that a backend
 * that moves bytes need not bring arithmetic.
 */
#ifndef BACKPLANE_ABI_EXT_REDUCE_H
#define BACKPLANE_ABI_EXT_REDUCE_H

#include "../status.h"
#include "../types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_REDUCE "backplane.reduce/1"

typedef struct bp_reduce_api {
  uint32_t struct_size;
  uint32_t reserved;

  /* out[i] = left[i] op right[i] for `count` elements, by the rules of types.h. avg and premul_sum combine like sum.
   * `out` may be `left` or `right`; other overlap is not allowed. BP_INVALID if dtype and op do not go together.
   * [any], does not block. */
  int32_t (*combine)(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
                     uint64_t count);

  /* The rest of avg, of the sum: data[i] /= `divisor` for `count` elements; integers are rounded toward zero.
   * BP_INVALID if there is no avg of the dtype, or the divisor is 0. [any], does not block. */
  int32_t (*divide)(uint32_t dtype, void* data, uint64_t divisor, uint64_t count);

  /* The rest of premul_sum, of each rank's input: out[i] = in[i] * *scalar for `count` elements; the scalar is one
   * element of the dtype. `out` may be `in`; other overlap is not allowed. BP_INVALID if there is no such dtype. [any],
   * does not block. */
  int32_t (*multiply)(uint32_t dtype, void* out, const void* in, const void* scalar, uint64_t count);

  /* All of a reduction, of the inputs of several ranks at once.
   *
   * out[i] = inputs[0][i] op inputs[1][i] op ... of `inputs_count` inputs, in this order, for `count` elements. avg
   * divides by `divisor` at the end; other operations ignore it. With `scalars`, each input whose scalar is not NULL is
   * multiplied by that one element of the dtype first; `scalars` itself may be NULL. f16, bf16, f8e4m3 and f8e5m2 are
   * in f32 until they are rounded at the very end, once; the other dtypes are as by multiply, combine and divide.
   * `out` may be any of the inputs; other overlap is not allowed. BP_INVALID if dtype and op do not go together, there
   * is no input, or the divisor of avg is 0.
   * [any], does not block. */
  int32_t (*reduce)(uint32_t dtype, uint32_t reduce_op, void* out, const void* const* inputs,
                    const void* const* scalars, uint64_t inputs_count, uint64_t divisor, uint64_t count);
} bp_reduce_api;

#ifdef __cplusplus
}
#endif

#endif
