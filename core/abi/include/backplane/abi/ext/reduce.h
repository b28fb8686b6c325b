/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.reduce/1", an extension of the host: the core's element-wise reductions on host memory, for backends that
 * have no arithmetic of their own.
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
   * `out` may be `left` or `right`; other overlap is not allowed. BP_INVALID if the dtype does not support the op.
   * [any], does not block. */
  int32_t (*combine)(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
                     uint64_t count);

  /* The second step of avg, applied to the sum: data[i] /= `divisor` for `count` elements; integer quotients are
   * rounded toward zero. BP_INVALID if the dtype has no avg or the divisor is 0. [any], does not block. */
  int32_t (*divide)(uint32_t dtype, void* data, uint64_t divisor, uint64_t count);

  /* The first step of premul_sum, applied to each rank's input: out[i] = in[i] * *scalar for `count` elements; the
   * scalar is one element of the dtype. `out` may be `in`; other overlap is not allowed. BP_INVALID if there is no such
   * dtype. [any], does not block. */
  int32_t (*multiply)(uint32_t dtype, void* out, const void* in, const void* scalar, uint64_t count);

  /* A complete reduction over the inputs of several ranks.
   *
   * out[i] = inputs[0][i] op inputs[1][i] op ... of `inputs_count` inputs, in this order, for `count` elements. avg
   * divides by `divisor` at the end; other operations ignore it. If `scalars` is not NULL, each input whose scalar is
   * not NULL is first multiplied by that one element of the dtype. f16, bf16, f8e4m3 and f8e5m2 are computed in f32 and
   * rounded once, at the end; other dtypes are computed as by multiply, combine and divide. `out` may be any of the
   * inputs; other overlap is not allowed. BP_INVALID if the dtype does not support the op, there is no input, or the
   * divisor of avg is 0. [any], does not block. */
  int32_t (*reduce)(uint32_t dtype, uint32_t reduce_op, void* out, const void* const* inputs,
                    const void* const* scalars, uint64_t inputs_count, uint64_t divisor, uint64_t count);
} bp_reduce_api;

#ifdef __cplusplus
}
#endif

#endif
