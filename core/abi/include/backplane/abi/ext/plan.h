/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.plan/1", an extension of the host of a probe: the group that the backend is to be chosen for. Only there,
 * and only while `auto` chooses; NULL where it is the machine alone that is asked about (`backplane list --probe`).
 * A backend answers BP_UNSUPPORTED if it could not make such a group here.
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
