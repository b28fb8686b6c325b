/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.probe/1", an extension of a process group: matches a message before its receive buffer is known (a matched
 * probe, as MPI_Mprobe). A probed message is matched by no other recv or probe.
 */
#ifndef BACKPLANE_ABI_EXT_PROBE_H
#define BACKPLANE_ABI_EXT_PROBE_H

#include "../process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_PROBE "backplane.probe/1"

typedef struct bp_probe_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx; /* first argument of the functions; owned by the backend */

  /* Takes the oldest message that a recv with this peer (or BP_ANY_SOURCE) and tag (or BP_ANY_TAG, with
   * BP_BACKEND_ANY_TAG) would receive now, and sets *result to its source, size and tag. Receives posted earlier match
   * first. The message is then received by one submit of a BP_RECV with bp_op.message set, which consumes the handle
   * even if it fails, or dropped by `drop`. If its sender cancels it or is lost before that, the recv fails with
   * BP_CANCELLED or BP_PEER_LOST, because it matches no other message. BP_AGAIN: there is no such message yet. Other
   * errors as for recv. [any]; does not block, and progresses the backend as work_test does. */
  int32_t (*probe)(void* ctx, int32_t peer, uint64_t tag, bp_message** message, bp_result* result, bp_error* err);

  /* Drops a probed message that was not received; its send is then done. Legal after abort and before destroy. [any];
   * does not block. */
  void (*drop)(void* ctx, bp_message* message);
} bp_probe_api;

#ifdef __cplusplus
}
#endif

#endif
