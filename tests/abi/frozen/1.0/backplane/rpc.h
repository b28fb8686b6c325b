/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API of remote procedure calls; rpc.hpp is the C++ API over it. Conventions are those of backplane.h.
 *
 * A worker is this process's part of a world of workers, which call each other's functions. Functions are registered
 * for the whole process, by name, before anybody calls them. Messages consist of a payload and of buffers, which are
 * never serialised, and references to values that stay with their owner. Buffers are in host memory, or (BP_CUDA) in
 * that of a device, if the agent carries that (tensorpipe, by its option device_maps; others end the call with
 * BP_UNSUPPORTED): what the device's default stream was given is waited for, other streams are not. Look at
 * bp_buffer.memory of what was received before you touch it: it is the peer that chooses.
 */
#ifndef BACKPLANE_RPC_H
#define BACKPLANE_RPC_H

#include "backplane/backplane.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_rpc bp_rpc;                 /* a worker */
typedef struct bp_rpc_payload bp_rpc_payload; /* what was received: arguments or a result */
typedef struct bp_rref bp_rref;               /* a reference to a value that a worker owns */

/* How a worker joins. bp_rpc_config_init gives every field its default. Valid during the call. */
typedef struct bp_rpc_config {
  uint32_t struct_size;
  int32_t rank; /* -1: from the init method or the environment; so for world_size */
  int32_t world_size;
  int32_t is_default;      /* 1: it becomes the worker of the process; BP_INVALID if there is one already */
  const char* name;        /* [A-Za-z0-9_:-]{1,127}, unlike those of all other workers */
  const char* backend;     /* "process_group", "tensorpipe?num_worker_threads=4"; NULL: BACKPLANE_RPC_BACKEND, else
                              tensorpipe if all are on one host that has it, else process_group */
  const char* init_method; /* as in bp_group_config; NULL: that of `options`, as a rule "env://" */
  const char* group;       /* backend of the process group in which the workers meet, as in bp_group_config */
  bp_store* store;
  bp_registry* registry;
  const bp_backend_options* options; /* what an options handler made, whose backend counts; if `backend` is named, too,
                                        BP_INVALID unless it is that one */
  int64_t timeout_ns;                /* of joining; BP_INHERIT_TIMEOUT: BP_DEFAULT_TIMEOUT_NS */
  int64_t rpc_timeout_ns;            /* of calls that say BP_INHERIT_TIMEOUT; itself BP_INHERIT_TIMEOUT: that of
                                        `options`, else BP_DEFAULT_RPC_TIMEOUT_NS */
} bp_rpc_config;

static inline void bp_rpc_config_init(bp_rpc_config* config) {
  const bp_rpc_config defaults = {
      sizeof *config, -1, -1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, BP_INHERIT_TIMEOUT, BP_INHERIT_TIMEOUT};
  *config = defaults;
}

/* Joins and waits for all workers. If the process has a default group, and neither a store nor an init method is given,
 * its ranks are the workers' ("rank argument R doesn't match pg rank P" if another one is given). If it fails on one
 * worker, it fails on all that have come to meet it, and over a store also if its rank is outside the world; all then
 * try again with a new prefix of the store. Refused here alone, before anybody is met: such a rank over an init method,
 * a world_size below 1, a `group` that there is not, and a second worker of the process over its default group; of one
 * over a store or an init method the others are told, if they come within 10 s. */
BP_API int32_t bp_rpc_init(const bp_rpc_config* config, bp_rpc** rpc, bp_error* err);
/* A handle of the worker whose function runs on this thread, else of the process's own. BP_INVALID if there is none. */
BP_API int32_t bp_rpc_current(bp_rpc** rpc, bp_error* err);
/* Gives a handle back. A worker lives until it is shut down, handles or not. */
BP_API void bp_rpc_release(bp_rpc* rpc);

BP_API int32_t bp_rpc_rank(const bp_rpc* rpc);
BP_API int32_t bp_rpc_world_size(const bp_rpc* rpc);
BP_API const char* bp_rpc_backend(const bp_rpc* rpc); /* "process_group"; valid as long as the handle */
/* The name of worker `rank`, NULL if there is none; valid as long as the handle. */
BP_API const char* bp_rpc_worker_name(const bp_rpc* rpc, int32_t rank);
/* BP_INVALID lists the names there are. */
BP_API int32_t bp_rpc_find(const bp_rpc* rpc, const char* name, int32_t* rank, bp_error* err);

/* Byte strings, one of each worker, in rank order. Called by all workers, in the same order. Blocks. */
BP_API int32_t bp_rpc_all_gather(bp_rpc* rpc, const void* data, uint64_t size, int64_t timeout_ns, bp_objects** out,
                                 bp_error* err);

/* Leaves. `graceful`: called by all workers; waits until nobody calls anybody any more, including what calls call, up
 * to timeout_ns (BP_INHERIT_TIMEOUT: BP_DEFAULT_TIMEOUT_NS). Workers that died are not waited for. Otherwise at once,
 * but for up to 2 s in which those that stay are told. In either case calls in flight then end with BP_CANCELLED,
 * nothing runs here any more, and values that this worker owns are gone. *leaks (may be NULL), for bp_free, names each
 * value of which others still had references, one a line. Twice is fine. Functions that run here are told
 * (bp_rpc_cancelled) and waited for until timeout_ns is over, at least 1 s: if one then still runs, the worker has left
 * and BP_TIMEOUT names it; it goes on alone, on its thread, and its result is nobody's. Peers that do not leave, too,
 * see their calls to this worker end with BP_CANCELLED, if they could be told within 2 s, else when those time out. Not
 * from within a function that a peer has called, nor from a bp_rpc_done or a value's destroy. */
BP_API int32_t bp_rpc_shutdown(bp_rpc* rpc, int32_t graceful, int64_t timeout_ns, char** leaks, bp_error* err);

/* Counters, as JSON for bp_free: those of torch's agents and references by torch's names, and in the same style what
 * torch does not count; for each peer calls, bytes, errors and histograms of latencies. The flight recorder of the
 * workers' group has them, too.
 *   agent.num_pending_requests            what was asked of others and is not answered, words about references included
 *   agent.client_active_calls             the same
 *   agent.server_active_calls             functions that were called here and have not ended
 *   agent.server_active_async_calls       those of them that wait, and have given their thread's place to another one
 *   agent.thread_pool_size, agent.num_idle_threads, agent.num_queued_tasks (not torch's)
 *   num_owner_rrefs, num_forks            values that this worker owns; references to them, wherever they are
 *   num_user_rrefs (not torch's)          references that are held here
 *   num_pending_users                     those of them that their owners have not confirmed yet
 *   num_pending_futures                   words about references that are not answered */
BP_API int32_t bp_rpc_metrics(bp_rpc* rpc, char** json, bp_error* err);

/* ---- Functions ----------------------------------------------------------------------------------------------------
 */

/* What goes out. payload and refs are copied; the buffers (counts are bytes) stay busy until release(owner), which is
 * called once, on any thread, also if the call that it is handed to fails. */
typedef struct bp_rpc_content {
  uint32_t struct_size;
  uint32_t buffer_count;
  const void* payload;
  uint64_t payload_size;
  const bp_buffer* buffers;
  bp_rref* const* refs; /* their receiver gets references of its own */
  uint64_t ref_count;
  void (*release)(void* owner); /* NULL: nothing is to be done */
  void* owner;
  int32_t last_reference; /* set for encode. 1: nobody else refers to the object, so that its own memory may be sent */
  int32_t reserved;
} bp_rpc_content;

/* What a function returned, or what a reference refers to. */
typedef struct bp_rpc_value {
  uint32_t struct_size;
  uint32_t reserved;
  void* object;
  void (*destroy)(void* object); /* on a thread of the worker, or that which releases the last handle */
  /* Fills in *content, which is zero but for its struct_size and `last_reference`. What it points to stays valid until
   * content->release; the object is kept until then. */
  int32_t (*encode)(void* object, bp_rpc_content* content, bp_error* err);
} bp_rpc_value;

/* Runs on a thread of the worker, may block and call others. Fills in *result, or returns an error, whose text is told
 * to the caller with this worker's name. */
typedef int32_t (*bp_rpc_function)(void* ctx, const bp_rpc_payload* arguments, bp_rpc_value* result, bp_error* err);

/* For the whole process. BP_INVALID if there is one of that name. `ctx` is never destroyed. */
BP_API int32_t bp_rpc_register(const char* name, bp_rpc_function function, void* ctx, bp_error* err);
/* The same for a function that takes microseconds, waits for nothing and calls nobody (what it calls fails with
 * BP_INVALID): it runs on the thread of the agent on which its call arrived, and its result is destroyed there, which
 * spares waking a thread. Nothing else arrives meanwhile. */
BP_API int32_t bp_rpc_register_inline(const char* name, bp_rpc_function function, void* ctx, bp_error* err);

/* Of what was received; valid until it is released. Buffers may be written to. */
BP_API const void* bp_rpc_payload_data(const bp_rpc_payload* payload, uint64_t* size);
BP_API uint32_t bp_rpc_payload_buffers(const bp_rpc_payload* payload);
BP_API void bp_rpc_payload_buffer(const bp_rpc_payload* payload, uint32_t index, bp_buffer* buffer);
/* A handle, to be released, of reference `index`; NULL if there is none. */
BP_API bp_rref* bp_rpc_payload_ref(const bp_rpc_payload* payload, uint32_t index);
BP_API bp_rpc_payload* bp_rpc_payload_retain(const bp_rpc_payload* payload); /* NULL: no memory */
BP_API void bp_rpc_payload_release(bp_rpc_payload* payload);

/* ---- Calls --------------------------------------------------------------------------------------------------------
 */

/* How a call ended: with a result (a handle to be released), or an error, which names worker, function and text. Called
 * once, on a thread of the worker or the caller's; must not block. */
typedef void (*bp_rpc_done)(void* ctx, bp_rpc_payload* result, const bp_error* err);

/* Calls a function of worker `to`. BP_INHERIT_TIMEOUT: the worker's rpc_timeout_ns. What is larger than either
 * worker's max_message_bytes, as arguments or as a result, ends the call with BP_INVALID.
 * Returns at once; if it returns an error `done` is not called. *id (may be NULL) is for bp_rpc_cancel. */
BP_API int32_t bp_rpc_call(bp_rpc* rpc, int32_t to, const char* function, const bp_rpc_content* arguments,
                           int64_t timeout_ns, bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err);
/* Ends a call with BP_CANCELLED and tells the callee, as a timeout and a broken connection do: what does not run yet
 * never will, what runs can ask bp_rpc_cancelled. Does nothing if it has ended. */
BP_API void bp_rpc_cancel(bp_rpc* rpc, uint64_t id);
/* 1 if the caller of the function that runs on this thread waits no more. */
BP_API int32_t bp_rpc_cancelled(void);

/* Whoever blocks in a function says so, so that another thread takes its place. They nest, and do nothing elsewhere. */
BP_API void bp_rpc_wait_begin(void);
BP_API void bp_rpc_wait_end(void);
/* In between, before it sleeps: calls ready(ctx) until that is not 0, for a moment in which others have the processor,
 * and returns 1. Returns 0 when it is time to sleep; at once on a thread whose last wait was longer than that. */
BP_API int32_t bp_rpc_wait_briefly(int32_t (*ready)(void* ctx), void* ctx);
/* Runs function(ctx) on a thread of the worker; at once, on this one, if the worker has shut down. */
BP_API void bp_rpc_run(bp_rpc* rpc, void (*function)(void* ctx), void* ctx);

/* ---- References ---------------------------------------------------------------------------------------------------
 *
 * A message that carries references and is lost on its way leaves nothing behind: once its call has ended without an
 * answer, or the agent has said that the answer did not arrive, the receiver is told to give up its claims, unless it
 * has the message by then. A message that comes after that is not delivered. Only an agent that loses an answer and
 * does not say so, or a giver that leaves just then, makes those values stay until the receiver, or their owner,
 * leaves.
 */

/* Calls a function of worker `to`, which keeps the result until the last reference is gone. Returns at once. */
BP_API int32_t bp_rpc_remote(bp_rpc* rpc, int32_t to, const char* function, const bp_rpc_content* arguments,
                             int64_t timeout_ns, bp_rref** ref, bp_error* err);
/* A reference to a value of this worker, which takes it over. */
BP_API int32_t bp_rref_create(bp_rpc* rpc, const bp_rpc_value* value, bp_rref** ref, bp_error* err);
BP_API int32_t bp_rref_owner(const bp_rref* ref); /* its rank */
/* Asks the owner for the value, as soon as it is there, like bp_rpc_call. */
BP_API int32_t bp_rref_fetch(bp_rref* ref, int64_t timeout_ns, bp_rpc_done done, void* ctx, uint64_t* id,
                             bp_error* err);
/* A handle, to be released, of the worker that holds the reference. */
BP_API int32_t bp_rref_worker(const bp_rref* ref, bp_rpc** rpc, bp_error* err);
/* The value itself, at its owner (elsewhere BP_INVALID), waiting until it is there. Valid as long as the handle,
 * also after shutdown. */
BP_API int32_t bp_rref_local(bp_rref* ref, int64_t timeout_ns, void** object, bp_error* err);
BP_API void bp_rref_release(bp_rref* ref); /* does not block; the owner is told */

#ifdef __cplusplus
}
#endif

#endif
