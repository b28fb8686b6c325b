/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API of remote procedure calls; rpc.hpp is the C++ API over it. The conventions are those of backplane.h.
 *
 * A worker is this process's part of a world of workers, which call each other's functions. Functions are registered by
 * name for the whole process, before the first call. A message consists of a payload, of buffers, which are never
 * serialised, and of references to values that stay with their owner. Buffers are in host memory, or in device memory
 * (BP_CUDA) if the agent supports it (tensorpipe, with its option device_maps; other agents end the call with
 * BP_UNSUPPORTED). Work that the program enqueued on the device's default stream finishes before a buffer is read;
 * other streams are not waited for. Check bp_buffer.memory of a received buffer before you access it: the peer chooses
 * it.
 */
#ifndef BACKPLANE_RPC_H
#define BACKPLANE_RPC_H

#include "backplane/backplane.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_rpc bp_rpc;                 /* a worker */
typedef struct bp_rpc_payload bp_rpc_payload; /* received arguments or a received result */
typedef struct bp_rref bp_rref;               /* a reference to a value that a worker owns */

/* How a worker joins. bp_rpc_config_init gives every field its default. Valid during the call. */
typedef struct bp_rpc_config {
  uint32_t struct_size;
  int32_t rank; /* -1: from the init method or the environment; likewise world_size */
  int32_t world_size;
  int32_t is_default;      /* 1: becomes the default worker of the process; BP_INVALID if there is one already */
  const char* name;        /* [A-Za-z0-9_:-]{1,127}, unique among all workers */
  const char* backend;     /* "process_group", "tensorpipe?num_worker_threads=4"; NULL: BACKPLANE_RPC_BACKEND, else
                              tensorpipe if all workers are on one host that has it, else process_group */
  const char* init_method; /* as in bp_group_config; NULL: that of `options`, by default "env://" */
  const char* group;       /* backend of the process group in which the workers meet, as in bp_group_config */
  bp_store* store;
  bp_registry* registry;
  const bp_backend_options* options; /* result of an options handler; selects the backend. BP_INVALID if `backend` is
                                        given and names another one */
  int64_t timeout_ns;                /* of joining; BP_INHERIT_TIMEOUT: BP_DEFAULT_TIMEOUT_NS */
  int64_t rpc_timeout_ns;            /* of calls with BP_INHERIT_TIMEOUT; if itself BP_INHERIT_TIMEOUT: that of
                                        `options`, else BP_DEFAULT_RPC_TIMEOUT_NS */
} bp_rpc_config;

static inline void bp_rpc_config_init(bp_rpc_config* config) {
  const bp_rpc_config defaults = {
      sizeof *config, -1, -1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, BP_INHERIT_TIMEOUT, BP_INHERIT_TIMEOUT};
  *config = defaults;
}

/* Joins, and waits for all workers. If the process has a default group, and neither a store nor an init method is
 * given, the workers have the ranks of that group ("rank argument R doesn't match pg rank P" if another rank is given).
 * A failure on one worker fails the call on all workers that have joined. Over a store, that includes a rank out of
 * range. To retry, all workers use a new prefix of the store. Some errors are detected before the workers meet and
 * fail on this worker alone: a rank out of range over an init method, a world_size below 1, an unknown `group`, and a
 * second worker of the process over its default group. A second worker over a store or an init method is reported to
 * the others if they join within 10 s. */
BP_API int32_t bp_rpc_init(const bp_rpc_config* config, bp_rpc** rpc, bp_error* err);
/* A handle of the worker whose function runs on this thread, else of the default worker. BP_INVALID if there is none.
 */
BP_API int32_t bp_rpc_current(bp_rpc** rpc, bp_error* err);
/* Drops a handle. A worker lives until it is shut down, with or without handles. */
BP_API void bp_rpc_release(bp_rpc* rpc);

BP_API int32_t bp_rpc_rank(const bp_rpc* rpc);
BP_API int32_t bp_rpc_world_size(const bp_rpc* rpc);
BP_API const char* bp_rpc_backend(const bp_rpc* rpc); /* "process_group"; valid as long as the handle */
/* The name of worker `rank`, NULL if there is none; valid as long as the handle. */
BP_API const char* bp_rpc_worker_name(const bp_rpc* rpc, int32_t rank);
/* BP_INVALID for an unknown name; the text lists the workers' names. */
BP_API int32_t bp_rpc_find(const bp_rpc* rpc, const char* name, int32_t* rank, bp_error* err);

/* Gathers one byte string of each worker, in rank order. All workers must call it, in the same order. Blocks. */
BP_API int32_t bp_rpc_all_gather(bp_rpc* rpc, const void* data, uint64_t size, int64_t timeout_ns, bp_objects** out,
                                 bp_error* err);

/* Ends the worker. `graceful`: all workers must call it; waits until all calls, including nested ones, have finished,
 * up to timeout_ns (BP_INHERIT_TIMEOUT: BP_DEFAULT_TIMEOUT_NS), and logs once a second what it waits for. Workers that
 * died are not waited for. From the first call on, only functions and callbacks of this worker may begin calls. On
 * other threads calls fail with BP_CANCELLED. Not graceful: does not wait for calls, but blocks up to 2 s while it
 * informs the workers that stay. In either case calls in flight then end with BP_CANCELLED, no function runs here any
 * more, and values that this worker owns are destroyed. *leaks (may be NULL), to be freed with bp_free, names each
 * value that others still referred to, one per line. A second call has no effect.
 *
 * Functions that run here are informed (bp_rpc_cancelled) and waited for until timeout_ns has passed, at least 1 s. If
 * one still runs then, the worker has ended and BP_TIMEOUT names the function, which is detached: it keeps its thread
 * and its result is discarded. Calls of staying peers to this worker end with BP_CANCELLED if the peers could be
 * informed within 2 s, else at their timeouts. Must not be called within a function that a peer has called, a
 * bp_rpc_done, or a value's destroy. */
BP_API int32_t bp_rpc_shutdown(bp_rpc* rpc, int32_t graceful, int64_t timeout_ns, char** leaks, bp_error* err);

/* Metrics, as JSON to be freed with bp_free: those of torch's agents and references under torch's names, and others in
 * the same style; for each peer calls, bytes, errors and latency histograms. The flight recorder of the workers' group
 * contains them as well.
 *   agent.num_pending_requests            requests to other workers without a reply, including reference messages
 *   agent.client_active_calls             the same
 *   agent.server_active_calls             functions that were called here and have not ended
 *   agent.server_active_async_calls       those of them that block and do not count towards the limit of the pool
 *   agent.thread_pool_size, agent.num_idle_threads, agent.num_queued_tasks (not torch's)
 *   num_owner_rrefs, num_forks            values that this worker owns; references to them on all workers
 *   num_user_rrefs (not torch's)          references that are held here
 *   num_pending_users                     those of them that their owners have not confirmed yet
 *   num_pending_futures                   reference messages without a reply */
BP_API int32_t bp_rpc_metrics(bp_rpc* rpc, char** json, bp_error* err);

/* ---- Functions ----------------------------------------------------------------------------------------------------
 */

/* Outgoing content. payload and refs are copied. The buffers (counts are bytes) stay busy until release(owner), which
 * is called once, on any thread, also if the call that takes the content fails. */
typedef struct bp_rpc_content {
  uint32_t struct_size;
  uint32_t buffer_count;
  const void* payload;
  uint64_t payload_size;
  const bp_buffer* buffers;
  bp_rref* const* refs; /* the receiver gets references of its own */
  uint64_t ref_count;
  void (*release)(void* owner); /* NULL: nothing to release */
  void* owner;
  int32_t last_reference; /* set for encode. 1: this is the only reference to the object, so its memory may be sent */
  int32_t reserved;
} bp_rpc_content;

/* The result of a function, or the value of a reference. */
typedef struct bp_rpc_value {
  uint32_t struct_size;
  uint32_t reserved;
  void* object;
  void (*destroy)(void* object); /* on a thread of the worker, or the thread that releases the last handle */
  /* Fills in *content, which is zero except for struct_size and `last_reference`. The memory it points to stays valid
   * until content->release; the object is kept until then. */
  int32_t (*encode)(void* object, bp_rpc_content* content, bp_error* err);
} bp_rpc_value;

/* A function of a worker. Runs on a thread of the worker; may block and call other workers. Fills in *result, or
 * returns an error, whose text is sent to the caller with this worker's name. */
typedef int32_t (*bp_rpc_function)(void* ctx, const bp_rpc_payload* arguments, bp_rpc_value* result, bp_error* err);

/* Registers a function for the whole process. BP_INVALID if the name is taken. `ctx` is never destroyed. */
BP_API int32_t bp_rpc_register(const char* name, bp_rpc_function function, void* ctx, bp_error* err);
/* The same for a function that takes microseconds, does not block and calls no other worker (such calls fail with
 * BP_INVALID). It runs on the agent's thread on which its call arrived, and its result is destroyed there, which avoids
 * waking a thread. No other message is processed meanwhile. */
BP_API int32_t bp_rpc_register_inline(const char* name, bp_rpc_function function, void* ctx, bp_error* err);

/* Accessors of a received payload; the memory is valid until the payload is released. Buffers may be written to. */
BP_API const void* bp_rpc_payload_data(const bp_rpc_payload* payload, uint64_t* size);
BP_API uint32_t bp_rpc_payload_buffers(const bp_rpc_payload* payload);
BP_API void bp_rpc_payload_buffer(const bp_rpc_payload* payload, uint32_t index, bp_buffer* buffer);
/* A handle, to be released, of reference `index`; NULL if out of range. */
BP_API bp_rref* bp_rpc_payload_ref(const bp_rpc_payload* payload, uint32_t index);
BP_API bp_rpc_payload* bp_rpc_payload_retain(const bp_rpc_payload* payload); /* NULL: no memory */
BP_API void bp_rpc_payload_release(bp_rpc_payload* payload);

/* ---- Calls --------------------------------------------------------------------------------------------------------
 */

/* The end of a call: a result (a handle to be released), or an error whose text names worker, function and cause.
 * Called once, on a thread of the worker or the caller's; must not block. */
typedef void (*bp_rpc_done)(void* ctx, bp_rpc_payload* result, const bp_error* err);

/* Calls a function of worker `to`. BP_INHERIT_TIMEOUT: the worker's rpc_timeout_ns. Arguments or a result larger than
 * either worker's max_message_bytes end the call with BP_INVALID. Returns at once; `done` is not called if it returns
 * an error. *id (may be NULL) is for bp_rpc_cancel. */
BP_API int32_t bp_rpc_call(bp_rpc* rpc, int32_t to, const char* function, const bp_rpc_content* arguments,
                           int64_t timeout_ns, bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err);
/* Ends a call with BP_CANCELLED and informs the callee, as a timeout and a broken connection do: a queued function
 * never runs, a running one can poll bp_rpc_cancelled. Has no effect on a call that has ended. */
BP_API void bp_rpc_cancel(bp_rpc* rpc, uint64_t id);
/* Returns 1 if the caller of the function that runs on this thread no longer waits for it. */
BP_API int32_t bp_rpc_cancelled(void);

/* Bracket blocking code in functions, so that the pool can start another thread. They nest, and have no effect on other
 * threads. */
BP_API void bp_rpc_wait_begin(void);
BP_API void bp_rpc_wait_end(void);
/* Polls ready(ctx) for a short time before a bracketed wait sleeps, yielding the processor. Returns 1 once ready(ctx)
 * is nonzero, 0 when the caller should sleep; at once on a thread whose last wait was longer than that. */
BP_API int32_t bp_rpc_wait_briefly(int32_t (*ready)(void* ctx), void* ctx);
/* Runs function(ctx) on a thread of the worker; immediately on this thread if the worker has shut down. */
BP_API void bp_rpc_run(bp_rpc* rpc, void (*function)(void* ctx), void* ctx);

/* ---- References ---------------------------------------------------------------------------------------------------
 *
 * References in a message that is lost are not leaked: once its call has ended without a reply, or the agent has
 * reported that the reply did not arrive, the receiver is told to give up its references, unless it already has the
 * message. A message that arrives after that is not delivered. Two cases keep a value until the receiver or the owner
 * leaves: an agent that loses a reply without reporting it, and a sender that leaves at that moment.
 */

/* Calls a function of worker `to`, which owns the result until the last reference is released. Returns at once. */
BP_API int32_t bp_rpc_remote(bp_rpc* rpc, int32_t to, const char* function, const bp_rpc_content* arguments,
                             int64_t timeout_ns, bp_rref** ref, bp_error* err);
/* Creates a reference to a value of this worker, which takes the value over. */
BP_API int32_t bp_rref_create(bp_rpc* rpc, const bp_rpc_value* value, bp_rref** ref, bp_error* err);
BP_API int32_t bp_rref_owner(const bp_rref* ref); /* its rank */
/* Fetches the value from its owner, once it exists, like bp_rpc_call. */
BP_API int32_t bp_rref_fetch(bp_rref* ref, int64_t timeout_ns, bp_rpc_done done, void* ctx, uint64_t* id,
                             bp_error* err);
/* A handle, to be released, of the worker that holds the reference. */
BP_API int32_t bp_rref_worker(const bp_rref* ref, bp_rpc** rpc, bp_error* err);
/* The value itself, at its owner (BP_INVALID on other workers); blocks until it exists. Valid as long as the handle,
 * also after shutdown. */
BP_API int32_t bp_rref_local(bp_rref* ref, int64_t timeout_ns, void** object, bp_error* err);
BP_API void bp_rref_release(bp_rref* ref); /* does not block; informs the owner */

#ifdef __cplusplus
}
#endif

#endif
