/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.calls/1", an extension of a process group, for layers: the remote procedure calls of the workers that have
 * met in this group. Calls are not operations of a group and do not pass its layers; one that offers this table is told
 * of each call when it has ended, by either side, also if leaving ended it. Of the fetch of a value only the side that
 * made it is told. When a worker has died and the others shut down, their group is made anew without it, and its layers
 * are told of no call whose peer is not in it.
 *
 * A layer may read the worker's own numbers, too: those of bp_rpc_metrics under the same names, less its histograms.
 *
 * The outermost layer that offers the table hears of calls; one that does not hands on the table of what it wraps. A
 * layer that is not BP_BACKEND_BOUNDED has no extensions and hands on none: it and those inside it hear nothing.
 */
#ifndef BACKPLANE_ABI_EXT_CALLS_H
#define BACKPLANE_ABI_EXT_CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "../status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_CALLS "backplane.calls/1"

/* A call that has ended. */
typedef struct bp_call {
  uint32_t struct_size;
  int32_t peer;     /* rank in the group; may be the worker's own */
  uint32_t served;  /* 1: made by the peer and served here, from its arrival on; 0: made here */
  int32_t status;   /* how it ended */
  uint64_t number;  /* the caller's: it and the caller's rank name the call on both sides */
  int64_t begin_ns; /* CLOCK_MONOTONIC */
  int64_t end_ns;
  const char* function; /* its name; "" where a value is fetched from its owner. Valid during the call */

  /* Payload and buffers, without what the core and the agent put around them: alike on both sides of a call that was
   * answered. */
  uint64_t request_bytes; /* the arguments */
  uint64_t answer_bytes;  /* the result; 0 if there was none, as after an error, or if it stays there (remote) */
} bp_call;

enum {
  BP_METRIC_GAUGE = 0,  /* goes up and down */
  BP_METRIC_COUNTER = 1 /* from 0 on, never less */
};

/* One number of a worker. Valid during the call, with its texts. */
typedef struct bp_metric {
  uint32_t struct_size;
  uint32_t kind;    /* one that the reader does not know is taken for a gauge */
  const char* name; /* "agent.num_pending_requests"; others may come */
  const char* peer; /* the worker that it is about, by its name; NULL: all */
  uint64_t value;
} bp_metric;

/* Where the numbers of a worker are read. */
typedef struct bp_metrics_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx;          /* first argument of `visit` */
  const char* worker; /* its name */

  /* Calls `each` for each number that there is now, and returns; none if the worker is no more. What `each` does may
   * not call the group or the worker.
   * [any], does not block for long. */
  void (*visit)(void* ctx, void (*each)(void* to, const bp_metric* metric), void* to);
} bp_metrics_api;

typedef struct bp_calls_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx; /* first argument of `ended`; owned by the layer */

  /* [any], several at a time, until destroy, also after abort; does not block for long and calls nothing of the
   * group's.
   */
  void (*ended)(void* ctx, const bp_call* call);

  /* May be NULL. A worker has met the others in this group; `metrics` and its texts are valid until destroy has
   * returned, during which they may still be read.
   * [one-at-a-time], at most once, before the worker's first call; does not block. */
  void (*joined)(void* ctx, const bp_metrics_api* metrics);
} bp_calls_api;

#ifdef __cplusplus
}
#endif

#endif
