/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.device/1", an extension of a process group whose operations run in streams of a device: what follows an
 * operation without the host waiting for it, batches, and the device's memory for those who do not know the device.
 *
 * LAYERS. A work of a layer is the layer's own. A layer around a group with this extension offers a table of its own,
 * whose wait_on_stream takes the layer's work and passes on the wrapped group's. Behind a layer that offers none, the
 * core waits on the host. BP_OP_MORE passes through a layer as it is.
 *
 * STREAMS. An operation on buffers of the device runs after what bp_op.stream held at submit. What is put into that
 * stream later runs after a collective, once that is in the stream; a message runs beside its stream, and what is to
 * follow it there needs `order`, as in any other stream.
 *
 * BATCHES. With BP_OP_MORE in its flags a send or recv is followed at once by another one of the same batch, from the
 * same thread, and the caller puts nothing into their streams between the two; its `seq` is the next one unless other
 * threads submit at the same time. A backend may start those with one peer and in one direction together, so that each
 * of them is done only when all of these are. None may wait for the next one to be submitted: that may fail to come.
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

  /* Has `stream` (cudaStream_t, of the group's device) wait for the operation of `work`: what is put into it from now
   * on runs after the operation. Waits up to timeout_ns, or until abort, until the operation is where a stream can wait
   * for it, not until it is done: a message, until its other end has been found; a collective, until it is launched,
   * for which no other rank is needed once one of its kind and size has been done in this group. The buffers stay busy
   * until the work is terminal, and a failure that comes later is told by work_wait alone: the stream goes on then,
   * too. BP_OK also if the operation is done. BP_AGAIN when that time is over; BP_UNSUPPORTED: this operation does not
   * end in a stream (buffers of the host); any other: what the operation failed with. [any], also beside work_test and
   * work_wait of the same work, but not beside work_release; until destroy. */
  int32_t (*wait_on_stream)(void* ctx, bp_work* work, void* stream, int64_t timeout_ns, bp_error* err);

  /* Copies between memory of this device (backplane.memory/1) and memory of the host, or within either. Not in any
   * order with operations and streams: wait for them before. BP_RESOURCE: the device refuses. [any], until destroy,
   * also after abort; blocks until it is done. */
  int32_t (*copy)(void* ctx, void* to, const void* from, uint64_t bytes, bp_error* err);
} bp_device_api;

#ifdef __cplusplus
}
#endif

#endif
