/* SPDX-License-Identifier: Apache-2.0
 *
 * One struct describes every operation.
 *
 * N is a count of elements of `dtype`, W the world size. "in" and "out" are bp_op.input and bp_op.output with their
 * `count`. Fields that a row does not name are zero or NULL. A count of 0 is legal everywhere, and then the data
 * pointer may be NULL.
 *
 *   kind              in                                out                               root/peer, counts
 *   barrier           -                                 -
 *   broadcast         N at the root                     N everywhere; at the root          root
 *                                                       out.data == in.data
 *   reduce            N                                 N at the root, else empty          root
 *   all_reduce        N                                 N
 *   gather            N                                 N*W at the root, else empty        root
 *   gatherv           N (this rank's)                   at the root, else empty            root; out_counts, out_displs
 *                                                                                          at the root
 *   scatter           N*W at the root, else empty       N                                  root
 *   scatterv          at the root, else empty           N (this rank's)                    root; in_counts, in_displs
 *                                                                                          at the root
 *   all_gather        N                                 N*W
 *   all_gatherv       N == out_counts[rank]             all                                out_counts, out_displs
 *   reduce_scatter    N*W                               N
 *   reduce_scatterv   all                               N == in_counts[rank]               in_counts, in_displs
 *   all_to_all        N*W                               N*W
 *   all_to_allv       all                               all                                in_* and out_*
 *   send              N                                 -                                  peer, tag
 *   recv              -                                 up to N                            peer, tag; or message
 *   scan              N                                 N
 *   exscan            N                                 N
 *
 * The peer of a recv may be BP_ANY_SOURCE, its tag BP_ANY_TAG.
 *
 * Blocks stand in rank order: rank r's block of gather, scatter, all_gather, reduce_scatter and all_to_all begins at
 * element r*N; that of a v-variant at element displs[r]. What lies in an output between its blocks is left as it was.
 *
 * scan reduces the inputs of ranks 0 to r into the output of rank r, exscan those of ranks 0 to r - 1; exscan leaves
 * the output of rank 0 as it was. The reduce op avg is refused for both.
 *
 * IN PLACE means exactly in place, and the core has refused every other overlap of in and out:
 *   all_reduce, reduce at the root, all_to_all, scan, exscan: out.data == in.data
 *   gather at the root, all_gather(v): in.data is this rank's own block of out; scatter at the root, reduce_scatter(v):
 *   out.data is this rank's own block of in.
 * An input that is not in place is never written to.
 *
 * ORDER. All ranks submit the collectives of one group in the same order, and `seq` is the same on all of them. It may
 * skip numbers (the core completes some operations over send and recv). Sends to one peer with one tag are received in
 * the order in which they were submitted. A send may wait for the matching recv (rendezvous).
 *
 * TAGS. Tags of users are below 2^32. Tags that the core makes for itself have BP_TAG_INTERNAL set. A backend with
 * BP_BACKEND_TAGS matches all 64 bits, or the low bp_backend.tag_bits bits: then the highest of those stands for
 * BP_TAG_INTERNAL, and the core refuses tags of users that do not fit below it. BP_ANY_TAG, which only backends with
 * BP_BACKEND_ANY_TAG are given, matches every tag of users; no message is sent with it. A recv takes the oldest message
 * that matches peer and tag; with BP_ANY_SOURCE the oldest from anyone, as this rank saw them arrive; a message goes to
 * the oldest recv that matches. Order among submits of several threads is that of calls that do not overlap. The core
 * completes what a backend lacks with tags of its own; a backend without BP_BACKEND_TAGS may ignore them, for they keep
 * the order of (peer).
 *
 * MESSAGES are bytes: sender and receiver need not name the same dtype, a peer may be the rank itself. A message longer
 * than the receive buffer ends the recv with BP_INVALID: the message is consumed, bp_result holds its source and full
 * size, what the buffer holds is undefined, and the group stays usable. A shorter one is fine; bp_result says how long,
 * and the rest of the buffer is left as it was.
 */
#ifndef BACKPLANE_ABI_OP_H
#define BACKPLANE_ABI_OP_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_ANY_SOURCE (-1)
#define BP_ANY_TAG UINT64_MAX
#define BP_TAG_INTERNAL (UINT64_C(1) << 63)

/* bp_op.stream: no ordering. The buffers are ready, and the program waits for the work. */
#define BP_NO_STREAM ((void*)(intptr_t)-1)

enum {
  BP_OP_SYNC = 1 /* the caller will wait at once: submit may block until the operation is terminal. It then keeps the
                    deadline (timeout_ns; 0: done at once or BP_TIMEOUT) and abort itself. A backend may ignore the flag
                    and return a work. Without it submit may still finish what needs no waiting, and the deadline is the
                    caller's affair: it will cancel. */
};

/* A span of elements. Frozen. The memory belongs to the caller and stays valid, and busy, until the operation is
 * terminal. Host memory is aligned as an element (of a complex number, its part) is by nature, and no better. */
typedef struct bp_buffer {
  void* data;
  uint64_t count;  /* elements of bp_op.dtype */
  uint32_t memory; /* BP_HOST ... */
  int32_t device;  /* ordinal; 0 for BP_HOST */
} bp_buffer;

/* A message that a probe took and no recv has received yet. Opaque. */
typedef struct bp_message bp_message;

/* What a finished operation reports beside its status. Owned by the caller, written by the backend before the operation
 * becomes terminal. Only recv writes anything today. What it says after a failure is
 * undefined, but for a message that was too long. */
typedef struct bp_result {
  uint32_t struct_size; /* set by the caller */
  int32_t source;       /* the sender's rank */
  uint64_t bytes;       /* size of the message received */
  uint64_t tag;         /* its tag */
} bp_result;

/* An operation. The struct, the count arrays and the scalar it points to are valid until submit returns: copy what is
 * needed longer. The buffers and `result` are valid until the operation is terminal. The core has validated all of it:
 * ranks are in range, counts agree with the table above on this rank, dtype and reduce op go together, count * size
 * fits int64_t. */
typedef struct bp_op {
  uint32_t struct_size;
  uint32_t kind;      /* BP_BARRIER ... */
  uint32_t dtype;     /* BP_F32 ...; BP_U8 for untyped bytes */
  uint32_t reduce_op; /* BP_SUM ...; only for reductions */
  int32_t root;       /* rank in this group; rooted collectives */
  int32_t peer;       /* rank in this group, or BP_ANY_SOURCE for recv */
  uint64_t tag;       /* send and recv */
  uint64_t seq;       /* collectives: the same on all ranks. send and recv: this rank's count, for logs only */
  uint64_t flags;     /* BP_OP_SYNC; BP_OP_MORE of ext/device.h, for backends with that extension alone */
  int64_t timeout_ns; /* time allowed from submit on, or BP_NO_TIMEOUT; programs may say BP_INHERIT_TIMEOUT */
  bp_buffer input;
  bp_buffer output;
  const uint64_t* in_counts; /* W elements each, or NULL; see the table */
  const uint64_t* in_displs;
  const uint64_t* out_counts;
  const uint64_t* out_displs;
  const void* scalar; /* premul_sum: this rank's factor, one element of dtype in host memory */
  void* stream;       /* device buffers: the stream to order after and before (cudaStream_t); NULL: the device's default
                         stream; BP_NO_STREAM: none */
  bp_result* result;  /* recv: where to report source, size and tag; may be NULL */
  bp_message* message; /* recv: the message that a probe took (ext/probe.h), instead of peer and tag; else NULL */
} bp_op;

#define BP_DTYPE_UNSET UINT32_MAX /* no dtype: an operation with it is BP_INVALID, unless it is a barrier */

/* An operation of that kind with every other field zero or NULL, but for the dtype, which has to be set, and the
 * timeout: that of the group. */
static inline void bp_op_init(bp_op* op, uint32_t kind) {
  const bp_buffer none = {NULL, 0, BP_HOST, 0};
  /* Field by field: compilers clear so large a struct by an instruction that takes a tenth of a small operation. */
  op->struct_size = sizeof *op;
  op->kind = kind;
  op->dtype = BP_DTYPE_UNSET;
  op->reduce_op = 0;
  op->root = op->peer = 0;
  op->tag = op->seq = op->flags = 0;
  op->timeout_ns = BP_INHERIT_TIMEOUT;
  op->input = op->output = none;
  op->in_counts = op->in_displs = op->out_counts = op->out_displs = NULL;
  op->scalar = NULL;
  op->stream = NULL;
  op->result = NULL;
  op->message = NULL;
}

#ifdef __cplusplus
}
#endif

#endif
