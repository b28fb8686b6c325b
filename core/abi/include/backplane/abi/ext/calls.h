/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.calls/1", an extension of a process group, for layers: reports the remote procedure calls (RPCs) of the
 * workers that meet in this group. Calls are not operations of a group and do not pass through its layers. A layer that
 * offers this table is told of each call after the call has ended, by caller or callee, including calls that a shutdown
 * ended. A fetch of a value is reported only to the side that made it. When a worker has died and the others shut down,
 * their group is created again without it; its layers are not told of calls whose peer is not in that group.
 *
 * A layer can also read the worker's metrics: those of bp_rpc_metrics under the same names, without its histograms.
 *
 * The outermost layer that offers the table is told of calls. A layer that does not offer it returns the table of the
 * group that it wraps. A layer without BP_BACKEND_BOUNDED offers no extensions and forwards none: it and the layers
 * inside it are told nothing.
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
  uint32_t served;  /* 1: made by the peer and served here, timed from its arrival; 0: made here */
  int32_t status;   /* how it ended */
  uint64_t number;  /* assigned by the caller; with the caller's rank it identifies the call on both sides */
  int64_t begin_ns; /* CLOCK_MONOTONIC */
  int64_t end_ns;
  const char* function; /* its name; "" for the fetch of a value from its owner. Valid during the call */

  /* Bytes of payload and buffers, without the headers of core and agent. Equal on both sides of a call that was
   * answered. */
  uint64_t request_bytes; /* the arguments */
  uint64_t answer_bytes; /* the result; 0 if there is none, as after an error, or if it stays with its owner (remote) */
} bp_call;

enum {
  BP_METRIC_GAUGE = 0,  /* may increase and decrease */
  BP_METRIC_COUNTER = 1 /* starts at 0 and never decreases */
};

/* One metric of a worker. The struct and its strings are valid during the call. */
typedef struct bp_metric {
  uint32_t struct_size;
  uint32_t kind;    /* BP_METRIC_GAUGE ...; readers treat an unknown kind as a gauge */
  const char* name; /* "agent.num_pending_requests"; later versions may add names */
  const char* peer; /* name of the worker that the metric concerns; NULL: all */
  uint64_t value;
} bp_metric;

/* Reads the metrics of a worker. */
typedef struct bp_metrics_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx;          /* first argument of `visit` */
  const char* worker; /* the worker's name */

  /* Calls `each` for each current metric, and returns; calls it for none if the worker no longer exists. `each` must
   * not call the group or the worker. [any], does not block for long. */
  void (*visit)(void* ctx, void (*each)(void* to, const bp_metric* metric), void* to);
} bp_metrics_api;

typedef struct bp_calls_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx; /* first argument of `ended`; owned by the layer */

  /* A call has ended. Called until destroy, also after abort. Must not block for long and must not call the group.
   * [any], several calls at a time. */
  void (*ended)(void* ctx, const bp_call* call);

  /* May be NULL. A worker has met the others in this group. `metrics` and its strings are valid, and may be read, until
   * destroy has returned. Called at most once, before the worker's first call. [one-at-a-time], does not block. */
  void (*joined)(void* ctx, const bp_metrics_api* metrics);
} bp_calls_api;

#ifdef __cplusplus
}
#endif

#endif
