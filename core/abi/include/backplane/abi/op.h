/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct that describes every operation.
 *
 * N is a count of elements of `dtype`, W the world size. "in" and "out" are bp_op.input and bp_op.output with their
 * `count`. Fields that a row does not name are zero or NULL. A count of 0 is always legal; the data pointer may then be
 * NULL.
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
 * Blocks are in rank order: rank r's block of gather, scatter, all_gather, reduce_scatter and all_to_all begins at
 * element r*N; that of a v-variant at element displs[r]. Elements of an output between its blocks are not changed.
 *
 * scan reduces the inputs of ranks 0 to r into the output of rank r, exscan those of ranks 0 to r - 1. exscan does not
 * change the output of rank 0. Both refuse the reduce op avg.
 *
 * IN PLACE means exactly in place. The core has refused every other overlap of in and out:
 *   all_reduce, reduce at the root, all_to_all, scan, exscan: out.data == in.data
 *   gather at the root, all_gather(v): in.data is this rank's own block of out; scatter at the root, reduce_scatter(v):
 *   out.data is this rank's own block of in.
 * An input that is not in place is never written to.
 *
 * ORDER. All ranks submit the collectives of one group in the same order, with equal `seq` on all of them. `seq` may
 * skip numbers, because the core implements some operations over send and recv. Sends to one peer with one tag are
 * received in the order in which they were submitted. A send may wait for the matching recv (rendezvous).
 *
 * TAGS. User tags are below 2^32. Internal tags of the core have BP_TAG_INTERNAL set. A backend with BP_BACKEND_TAGS
 * matches all 64 bits, or the low bp_backend.tag_bits bits: the highest of those then represents BP_TAG_INTERNAL, and
 * the core refuses user tags that do not fit below it. BP_ANY_TAG, which only backends with BP_BACKEND_ANY_TAG receive,
 * matches every user tag; no message is sent with it. A recv takes the oldest message that matches peer and tag; with
 * BP_ANY_SOURCE the oldest from any rank, in the order of arrival at this rank. A message goes to the oldest recv that
 * matches. Order among submits of several threads is defined only for calls that do not overlap. The core implements
 * missing collectives with internal tags; a backend without BP_BACKEND_TAGS may ignore them, because they arrive in the
 * order of sends per peer.
 *
 * MESSAGES are bytes: sender and receiver may name different dtypes. The peer may be the rank itself. A message longer
 * than the receive buffer ends the recv with BP_INVALID as soon as its size is known: the message is consumed,
 * bp_result holds its source and full size, the contents of the buffer are undefined, and the group stays usable. A
 * shorter message is received; bp_result holds its length, and the rest of the buffer is not changed.
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

/* bp_op.stream: no ordering. The buffers are ready, and the program waits for the work on the host. */
#define BP_NO_STREAM ((void*)(intptr_t)-1)

enum {
  BP_OP_SYNC = 1 /* the caller waits at once: submit may block until the operation is terminal. The backend then
                    enforces the deadline (timeout_ns; 0: done at once or BP_TIMEOUT) and abort. It may ignore the flag
                    and return a work. Without the flag, submit may still complete operations that need no waiting, and
                    the caller enforces the deadline with work_cancel. */
};

/* A span of elements. Frozen. The memory belongs to the caller and stays valid, and busy, until the operation is
 * terminal. Host memory has the natural alignment of an element (of a complex number: of its part), no more. */
typedef struct bp_buffer {
  void* data;
  uint64_t count;  /* elements of bp_op.dtype */
  uint32_t memory; /* BP_HOST ... */
  int32_t device;  /* ordinal; 0 for BP_HOST */
} bp_buffer;

/* A message that a probe took and no recv has received. Opaque. */
typedef struct bp_message bp_message;

/* The result of an operation besides its status. Owned by the caller, written by the backend before the operation
 * becomes terminal. Only recv writes it. Undefined after a failure, except for a message that was too long. */
typedef struct bp_result {
  uint32_t struct_size; /* set by the caller */
  int32_t source;       /* the sender's rank */
  uint64_t bytes;       /* size of the message received */
  uint64_t tag;         /* its tag */
} bp_result;

/* An operation. The struct, and the count arrays and the scalar it points to, are valid until submit returns: a backend
 * copies what it needs longer. The buffers and `result` are valid until the operation is terminal. The core has
 * validated it: ranks are in range, counts agree with the table above on this rank, the dtype supports the reduce op,
 * and count * size fits int64_t. */
typedef struct bp_op {
  uint32_t struct_size;
  uint32_t kind;      /* BP_BARRIER ... */
  uint32_t dtype;     /* BP_F32 ...; BP_U8 for untyped bytes */
  uint32_t reduce_op; /* BP_SUM ...; only for reductions */
  int32_t root;       /* rank in this group; rooted collectives */
  int32_t peer;       /* rank in this group, or BP_ANY_SOURCE for recv */
  uint64_t tag;       /* send and recv */
  uint64_t seq;       /* collectives: the same on all ranks. send and recv: this rank's count, for logs only */
  uint64_t flags;     /* BP_OP_SYNC; BP_OP_MORE of ext/device.h, only for backends with that extension */
  int64_t timeout_ns; /* time allowed from submit on, or BP_NO_TIMEOUT; in the C API also BP_INHERIT_TIMEOUT */
  bp_buffer input;
  bp_buffer output;
  const uint64_t* in_counts; /* W elements each, or NULL; see the table */
  const uint64_t* in_displs;
  const uint64_t* out_counts;
  const uint64_t* out_displs;
  const void* scalar;  /* premul_sum: this rank's factor, one element of dtype in host memory */
  void* stream;        /* device buffers: the stream to order before and after the operation (cudaStream_t); NULL: the
                          device's default stream; BP_NO_STREAM: none */
  bp_result* result;   /* recv: receives source, size and tag; may be NULL */
  bp_message* message; /* recv: a probed message (ext/probe.h), instead of peer and tag; else NULL */
} bp_op;

#define BP_DTYPE_UNSET UINT32_MAX /* no dtype: BP_INVALID for every operation except barrier */

/* Initialises an operation of that kind. The dtype is unset and must be set; the timeout is the group's; all other
 * fields are zero or NULL. */
static inline void bp_op_init(bp_op* op, uint32_t kind) {
  const bp_buffer none = {NULL, 0, BP_HOST, 0};
  /* Field by field: compilers clear so large a struct with an instruction that takes a tenth of a small operation. */
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
