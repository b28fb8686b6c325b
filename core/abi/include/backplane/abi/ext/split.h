/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.split/1", an extension of a process group: makes the agent of a subgroup out of an existing one, sharing
 * its connections. Without it the core calls the init handler again with a store of the subgroup's own.
 */
#ifndef BACKPLANE_ABI_EXT_SPLIT_H
#define BACKPLANE_ABI_EXT_SPLIT_H

#include "../plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_SPLIT "backplane.split/1"

typedef struct bp_split_api {
  uint32_t struct_size;
  uint32_t reserved;

  /* Called by all members of the new group and nobody else. `init` describes the new group (its host, rank, world size,
   * name); parent_ranks[i] is the rank in the parent of the new group's rank i. The child outlives its parent safely:
   * the parent may be destroyed first. [any]; blocks up to init->timeout_ns. */
  int32_t (*split)(void* self, const bp_init* init, const int32_t* parent_ranks, bp_agent* agent, bp_error* err);
} bp_split_api;

#ifdef __cplusplus
}
#endif

#endif
