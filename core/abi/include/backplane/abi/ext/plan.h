/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.plan/1", an extension of the host that `probe` is given: describes the group for which `auto` is choosing
 * a backend. NULL if only the machine is examined (`backplane list --probe`). A backend that cannot form such a group
 * here returns BP_UNSUPPORTED from probe.
 */
#ifndef BACKPLANE_ABI_EXT_PLAN_H
#define BACKPLANE_ABI_EXT_PLAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_PLAN "backplane.plan/1"

typedef struct bp_plan_api {
  uint32_t struct_size;
  int32_t world_size; /* ranks of the group, at least 1 */
} bp_plan_api;

#ifdef __cplusplus
}
#endif

#endif
