/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.batch/1", an extension of a process group: several operations handed in as one, so that a library that
 * groups them (NCCL) can start them together. Without it the core submits them one by one.
 */
#ifndef BACKPLANE_ABI_EXT_BATCH_H
#define BACKPLANE_ABI_EXT_BATCH_H

#include "../process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_BATCH "backplane.batch/1"

typedef struct bp_batch_api {
  uint32_t struct_size;
  uint32_t reserved;

  /* Starts `count` operations. works[i] is NULL on entry and is set like submit sets it. None of them may depend on the
   * order in which the others finish. All or nothing: on failure no work is left. [any], does not block (BP_OP_SYNC is
   * not set). */
  int32_t (*submit)(void* self, const bp_op* const* ops, uint64_t count, bp_work** works, bp_error* err);
} bp_batch_api;

#ifdef __cplusplus
}
#endif

#endif
