/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.device/1", an extension of a process group whose operations run in streams of a device: ordering of later
 * stream work after an operation without blocking the host, batches of messages, and copies between device and host.
 *
 * LAYERS. The works of a layer are the layer's own. A layer around a group with this extension offers its own table,
 * whose wait_on_stream maps the layer's work to the wrapped group's. If the outermost layer offers no table, the core
 * waits on the host. A layer passes BP_OP_MORE on unchanged.
 *
 * STREAMS. An operation on device buffers runs after the work that bp_op.stream held at submit. Work enqueued on that
 * stream later runs after a collective, once the collective is in the stream. A message runs beside its stream: later
 * work is ordered after it only by `wait_on_stream`, in that stream as in any other.
 *
 * BATCHES. A send or recv with BP_OP_MORE in its flags is followed at once by another one of the same batch, from the
 * same thread; between the two the caller enqueues nothing on their streams. Their `seq` are consecutive unless other
 * threads submit at the same time. A backend may start the members of a batch that have the same peer and direction
 * together; each of them is then done only when all of them are. No member may wait for the next submit, which may
 * never come.
 */
#ifndef BACKPLANE_ABI_EXT_DEVICE_H
#define BACKPLANE_ABI_EXT_DEVICE_H

#include "../process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_DEVICE "backplane.device/1"

#define BP_OP_MORE UINT64_C(2) /* a bit of bp_op.flags, set only for backends with this extension */

typedef struct bp_device_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx; /* first argument of the functions; owned by the backend */

  /* Makes `stream` (cudaStream_t, of the group's device) wait for the operation of `work`: work enqueued from now on
   * runs after the operation. Blocks up to timeout_ns, or until abort, until the operation is enqueued where a stream
   * can wait for it, not until it is done. A message is enqueued once its peer has been found. A collective is enqueued
   * once it is launched; this needs no other rank after one of the same kind and size has completed in this group. The
   * buffers stay busy until the work is terminal. A later failure is reported by work_wait alone, and the stream
   * continues. BP_OK also if the operation is done. BP_AGAIN: timeout_ns has passed. BP_UNSUPPORTED: the operation does
   * not end in a stream (host buffers). Any other status: the operation failed with it. [any], also beside work_test
   * and work_wait of the same work, but not beside work_release; until destroy. */
  int32_t (*wait_on_stream)(void* ctx, bp_work* work, void* stream, int64_t timeout_ns, bp_error* err);

  /* Copies between memory of this device (backplane.memory/1) and host memory, or within either. Not ordered with
   * operations and streams: the caller waits for those first. BP_RESOURCE: the device reported an error. [any], until
   * destroy, also after abort; blocks until the copy is done. */
  int32_t (*copy)(void* ctx, void* to, const void* from, uint64_t bytes, bp_error* err);
} bp_device_api;

#ifdef __cplusplus
}
#endif

#endif
