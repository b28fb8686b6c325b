/* SPDX-License-Identifier: Apache-2.0
 *
 * Backplane's C API: what libbackplane.so exports, for every language that can call C. The C++ API (backplane.hpp) is a
 * set of headers over these functions.
 *
 * Conventions are those of the plugin ABI (backplane/abi/version.h): statuses as int32_t, errors in a caller-owned
 * bp_error (may be NULL), durations in nanoseconds with BP_NO_TIMEOUT and BP_INHERIT_TIMEOUT, growing structs with
 * struct_size first, strings UTF-8. Every function may be called from any thread unless it says otherwise. Handles are
 * opaque; each *_release ends the caller's claim on one, takes NULL, and never blocks for longer than its object's
 * documented end. A NULL pointer or a released handle is answered with BP_INVALID, and by functions without a status
 * with -1, 0 or NULL; a released handle is recognised until a thousand others of its type have been released after it.
 *
 * Terms are those of torch.distributed. N is a count of elements, W the world size.
 */
#ifndef BACKPLANE_BACKPLANE_H
#define BACKPLANE_BACKPLANE_H

#include "backplane/abi/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_API __attribute__((visibility("default")))

#define BP_DEFAULT_TIMEOUT_NS (INT64_C(1800) * 1000000000) /* 30 minutes, as in torch.distributed */
#define BP_DEFAULT_RPC_TIMEOUT_NS (INT64_C(60) * 1000000000)

/* The version of these headers; bp_version() is that of the library. */
#define BP_VERSION_MAJOR 1
#define BP_VERSION_MINOR 0
#define BP_VERSION_PATCH 0
#define BP_VERSION (BP_VERSION_MAJOR * 10000 + BP_VERSION_MINOR * 100 + BP_VERSION_PATCH)

/* "1.0.0". Static. */
BP_API const char* bp_version(void);

/* Names of the constants of backplane/abi: "f32" for BP_F32, "sum" for BP_SUM, "all_reduce" for BP_ALL_REDUCE,
 * "peer_lost" for BP_PEER_LOST; "unknown dtype" and the like if there is no such. Static. */
BP_API const char* bp_dtype_name(uint32_t dtype);
BP_API const char* bp_reduce_op_name(uint32_t reduce_op);
BP_API const char* bp_op_name(uint32_t kind);
BP_API const char* bp_status_name(int32_t status);

/* Has `interrupted(ctx)` asked about every 100 ms by each thread that blocks in a function of this API (also rpc.h, and
 * the waits of the C++ API), on that thread and without a lock. Nonzero ends the call with BP_CANCELLED as if its
 * deadline had passed: an operation that the call performs or waits for is cancelled, which breaks its group if it is a
 * collective, and its buffers are free. For interpreters that look for signals there. NULL: nobody is asked. The hook
 * may call anything but functions of this API that block. */
BP_API void bp_set_interrupt_hook(int32_t (*interrupted)(void* ctx), void* ctx);
/* Asks the hook on this thread: nonzero if a wait is to end. 0 if there is none. For waits of the program's own. */
BP_API int32_t bp_interrupted(void);

/* Frees a string that a function of this API returned through a char**. */
BP_API void bp_free(void* text);

/* ---- Stores: the key-value space through which ranks meet ---------------------------------------------------------
 */

typedef struct bp_store bp_store;
typedef struct bp_store_server bp_store_server;

/* Listens on host:port (0: any free port) and serves a store until released. `host` is a name or an address of this
 * machine, never a wildcard, or "auto": the address of the interface of the default route, else the first address of
 * the host name that is not loopback, else 127.0.0.1. `job_id` (NULL: "") must be the one that clients give, and so
 * must the job's secret if BACKPLANE_SECRET_FILE or BACKPLANE_SECRET_FD names one (share/doc/security.md). BP_RESOURCE
 * if the port is in use. */
BP_API int32_t bp_store_server_start(const char* host, uint16_t port, const char* job_id, bp_store_server** server,
                                     bp_error* err);
BP_API uint16_t bp_store_server_port(const bp_store_server* server);
/* Where it listens, as numbers: "10.0.0.1:29500", "[fd00::1]:29500". Valid as long as the server. */
BP_API const char* bp_store_server_address(const bp_store_server* server);
/* Blocks until no client is connected. The process that serves a store calls this before it ends, so that the others
 * can finish. Every client counts, including those of this process: release its stores and the groups made over them
 * first. A client that has not connected yet is not waited for. BP_TIMEOUT says how many clients are left and names
 * them. The server goes on serving. It must not be released during the call. */
BP_API int32_t bp_store_server_wait(bp_store_server* server, int64_t timeout_ns, bp_error* err);
BP_API void bp_store_server_release(bp_store_server* server); /* closes every client's connection */

/* Connects to a server, trying again for up to timeout_ns while nobody listens. Blocks. */
BP_API int32_t bp_store_connect(const char* host, uint16_t port, const char* job_id, int64_t timeout_ns,
                                bp_store** store, bp_error* err);
/* A store in a file that all ranks can open; created if missing. */
BP_API int32_t bp_store_open_file(const char* path, bp_store** store, bp_error* err);
/* A store in this process's memory. */
BP_API int32_t bp_store_create_inproc(bp_store** store, bp_error* err);
/* The keys of `inner` that begin with `prefix`. Keeps `inner` alive. */
BP_API int32_t bp_store_create_prefix(bp_store* inner, const char* prefix, bp_store** store, bp_error* err);
/* A store made of the program's own functions: see bp_store_callbacks. BP_INVALID names a required one that is NULL. */
typedef struct bp_store_callbacks bp_store_callbacks;
BP_API int32_t bp_store_create_custom(const bp_store_callbacks* callbacks, bp_store** store, bp_error* err);
BP_API void bp_store_release(bp_store* store);

/* Values are bytes, up to 64 MiB; keys up to 4096 bytes. All block for at most timeout_ns (BP_INHERIT_TIMEOUT:
 * BP_DEFAULT_TIMEOUT_NS); those that wait for keys end with BP_TIMEOUT and name the key. */
BP_API int32_t bp_store_set(bp_store* store, const char* key, const void* value, uint64_t size, int64_t timeout_ns,
                            bp_error* err);
/* Waits for the key. *value is a copy (NUL-terminated beyond its size) for bp_free. */
BP_API int32_t bp_store_get(bp_store* store, const char* key, char** value, uint64_t* size, int64_t timeout_ns,
                            bp_error* err);
/* Adds to a counter that is kept as decimal text; a missing one counts as 0. */
BP_API int32_t bp_store_add(bp_store* store, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ns,
                            bp_error* err);
BP_API int32_t bp_store_wait(bp_store* store, const char* const* keys, uint64_t count, int64_t timeout_ns,
                             bp_error* err);
/* *exist is 1 if all keys exist now, else 0. */
BP_API int32_t bp_store_check(bp_store* store, const char* const* keys, uint64_t count, int32_t* exist,
                              int64_t timeout_ns, bp_error* err);
/* Sets the key if its value equals `expected` (an empty one also matches a missing key); *value, for bp_free, is what
 * stands there afterwards. */
BP_API int32_t bp_store_compare_set(bp_store* store, const char* key, const void* expected, uint64_t expected_size,
                                    const void* desired, uint64_t desired_size, char** value, uint64_t* size,
                                    int64_t timeout_ns, bp_error* err);
BP_API int32_t bp_store_delete(bp_store* store, const char* key, int32_t* existed, int64_t timeout_ns, bp_error* err);
BP_API int32_t bp_store_num_keys(bp_store* store, int64_t* count, int64_t timeout_ns, bp_error* err);

/* Receives the value that a callback found. Valid until the callback returns. */
typedef struct bp_store_answer bp_store_answer;

/* Copies the value into the answer; the last one set counts. A callback can end with
 * `return bp_store_answer_set(answer, value, size, err)`. BP_INVALID beyond 64 MiB. Does not block. */
BP_API int32_t bp_store_answer_set(bp_store_answer* answer, const void* value, uint64_t size, bp_error* err);

/* A key-value space that the program has already (etcd, Redis, Kubernetes, MPI, torch.distributed's Store), for
 * bp_store_create_custom. Every process makes its own store over the same space. bp_store_callbacks_init sets every
 * field to NULL; `name`, `ctx`, `num_keys` and `release` may stay NULL. The struct is copied; what `ctx` points to
 * stays valid until `release` is called.
 *
 * Each callback does what the bp_store function of its name does, for one key. It returns BP_OK, or an error status
 * with a text in *err; the call then fails with that status and text. Keys have 1 to 4096 bytes and no NUL, values up
 * to 64 MiB. All pointers but `ctx` are not NULL, and valid until the callback returns.
 *
 * Threads: [any], several at once, on threads of the core that take no signals. A callback may block and may use other
 * stores and groups. It must not use a group made over this store, and must not throw.
 *
 * Time: `timeout_ns` is at least 1 s, or BP_NO_TIMEOUT; for `get` it is 0 to 1 s. The core waits for a callback until a
 * second after the call's own timeout, and not beyond the abort of a group that is starting. Then the call fails, and
 * the callback is left behind on its thread until it returns.
 *
 * Deaths are not noticed through such a store: bp_group_shrink finds only ranks whose groups were destroyed. The keys
 * of a group stay in the space: give each run of a job an empty space or a prefix of its own (bp_store_create_prefix).
 */
struct bp_store_callbacks {
  uint32_t struct_size;
  uint32_t reserved;
  const char* name; /* for messages: "etcd://10.0.0.1:2379"; copied. NULL: "the program's store" */
  void* ctx;        /* the first argument of every callback */
  int32_t (*set)(void* ctx, const char* key, const void* value, uint64_t size, int64_t timeout_ns, bp_error* err);
  /* Waits up to timeout_ns for the key (0: looks once). BP_TIMEOUT: the key is not there. A callback that cannot wait
   * returns that at once; the core asks again after 1 to 50 ms. */
  int32_t (*get)(void* ctx, const char* key, bp_store_answer* answer, int64_t timeout_ns, bp_error* err);
  /* Atomic among all processes. The sum must be found by `get` as decimal text. BP_INVALID: the value that stands there
   * is no decimal number, or the sum does not fit. */
  int32_t (*add)(void* ctx, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ns, bp_error* err);
  /* Atomic among all processes. An empty `expected` also matches a missing key. The answer is the value that stands
   * there afterwards, empty if there is no such key. */
  int32_t (*compare_set)(void* ctx, const char* key, const void* expected, uint64_t expected_size, const void* desired,
                         uint64_t desired_size, bp_store_answer* answer, int64_t timeout_ns, bp_error* err);
  int32_t (*delete_key)(void* ctx, const char* key, int32_t* existed, int64_t timeout_ns, bp_error* err);
  /* NULL: bp_store_num_keys is BP_UNSUPPORTED. The core itself does not call it. */
  int32_t (*num_keys)(void* ctx, int64_t* count, int64_t timeout_ns, bp_error* err);
  /* Called once, when the store and everything made from it is gone and every callback has returned, on the thread that
   * ends the last of them. Not called if bp_store_create_custom fails. */
  void (*release)(void* ctx);
};

static inline void bp_store_callbacks_init(bp_store_callbacks* callbacks) {
  const bp_store_callbacks defaults = {sizeof *callbacks, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
  *callbacks = defaults;
}

/* ---- The registry of backends (torch.distributed.rpc.backend_registry) --------------------------------------------
 */

typedef struct bp_registry bp_registry;
typedef struct bp_backend_type bp_backend_type;       /* a member of BackendType; lives as long as its registry */
typedef struct bp_backend_options bp_backend_options; /* what an options handler made */
typedef struct bp_group bp_group;

/* The registry that belongs to the process. Not to be released. NULL stands for it wherever a registry is asked for. */
BP_API bp_registry* bp_registry_default(void);
BP_API int32_t bp_registry_create(bp_registry** registry, bp_error* err);
/* Only after everything made with it is gone. */
BP_API void bp_registry_release(bp_registry* registry);

/* 1 if `name` (any case) is registered, built in, or carried by a plugin file in the search path; runs no plugin code.
 */
BP_API int32_t bp_backend_registered(bp_registry* registry, const char* name);
/* Adds a backend of this program. The descriptor and all it points to must outlive the registry. BP_INVALID "RPC
 * backend X: already registered". *type may be NULL. */
BP_API int32_t bp_register_backend(bp_registry* registry, const bp_backend* backend, const bp_backend_type** type,
                                   bp_error* err);
/* The member by name, loading its plugin if need be. If there is none, the error lists what was found, where it was
 * looked for and what was rejected, and suggests the nearest name. */
BP_API int32_t bp_backend_lookup(bp_registry* registry, const char* name, const bp_backend_type** type, bp_error* err);
/* "GLOO"; its repr is "BackendType.GLOO". */
BP_API const char* bp_backend_type_name(const bp_backend_type* type);
BP_API const bp_backend* bp_backend_type_descriptor(const bp_backend_type* type);
/* The options handler: checks keys and values against the schema, fills in defaults. */
BP_API int32_t bp_construct_backend_options(const bp_backend_type* type, int64_t rpc_timeout_ns,
                                            const char* init_method, const bp_key_value* values, uint64_t count,
                                            bp_backend_options** options, bp_error* err);
/* The value of one option as normalised text ("***" for secrets); NULL if there is no such key. Valid as long as the
 * options. */
BP_API const char* bp_backend_options_get(const bp_backend_options* options, const char* key);
BP_API void bp_backend_options_release(bp_backend_options* options);
/* The init handler: makes this rank's part of a process group. `options` must come from the same member. BP_INVALID
 * "rank argument R doesn't match pg rank P" if the backend disagrees. Blocks until all ranks have come, up to
 * timeout_ns. */
BP_API int32_t bp_init_backend(const bp_backend_type* type, bp_store* store, const char* name, int32_t rank,
                               int32_t world_size, const bp_backend_options* options, int64_t timeout_ns,
                               bp_group** group, bp_error* err);

/* Looks at the search path again. Lookups notice new files by themselves; this forgets earlier rejections, too. */
BP_API void bp_registry_rescan(bp_registry* registry);
/* What is there, as JSON for bp_free: {"directories": [...], "backends": [...], "rejected": [...]}. Runs no plugin
 * code. */
BP_API int32_t bp_registry_list(bp_registry* registry, char** json, bp_error* err);
/* Everything about one backend (options, capabilities, file, versions), as JSON for bp_free. Loads its plugin. */
BP_API int32_t bp_registry_info(bp_registry* registry, const char* name, char** json, bp_error* err);
/* BP_OK if the backend is viable on this machine, else BP_UNSUPPORTED with its reason. Loads its plugin and runs its
 * probe in this process; what that remarks about the machine is logged (BP_LOG_INFO). */
BP_API int32_t bp_registry_probe(bp_registry* registry, const char* name, bp_error* err);
/* What the core makes of one plugin file, wherever it lies: loads it as a lookup would, with the same checks, and
 * gives what bp_registry_info says of each of its backends, as a JSON array for bp_free. The error is the reason for
 * which the core refuses the file. Registers nothing. */
BP_API int32_t bp_plugin_file_info(const char* path, char** json, bp_error* err);

/* ---- Process groups -----------------------------------------------------------------------------------------------
 */

/* How a group is made. bp_group_config_init gives every field its default. Valid during the call. */
typedef struct bp_group_config {
  uint32_t struct_size;
  int32_t rank;            /* -1: from the init method or the environment */
  int32_t world_size;      /* -1: likewise */
  int32_t device;          /* ordinal of the device this rank computes on, -1: none */
  const char* backend;     /* "gloo", "gloo?iface=eth0&threads=2", "cpu:gloo,cuda:nccl", "auto"; NULL: the environment's
                              BACKPLANE_BACKEND, else "auto" */
  const char* init_method; /* "env://" (the default), "tcp://host:port", "file:///path"; unused if `store` is given */
  const char* name;        /* of the group, for messages; NULL: "world" */
  bp_store* store;         /* instead of init_method; then rank and world_size must be given */
  bp_registry* registry;   /* NULL: the default one */
  int64_t timeout_ns;      /* for init and, by default, for each operation; BP_INHERIT_TIMEOUT: BP_DEFAULT_TIMEOUT_NS */
} bp_group_config;

static inline void bp_group_config_init(bp_group_config* config) {
  const bp_group_config defaults = {sizeof *config, -1, -1, -1, NULL, NULL, NULL, NULL, NULL, BP_INHERIT_TIMEOUT};
  *config = defaults;
}

/* An operation that was started and not waited for. */
typedef struct bp_request bp_request;

/* Makes the process-wide default group. BP_INVALID if there is one already ("twice"). A backend with BP_BACKEND_LOCAL
 * leaves the default alone. *group (may be NULL) is a handle to be released. Blocks until all ranks have come. */
BP_API int32_t bp_init_process_group(const bp_group_config* config, bp_group** group, bp_error* err);
BP_API int32_t bp_is_initialized(void);
/* Ends the default group and every group made from it. BP_INVALID if there is none. */
BP_API int32_t bp_destroy_process_group(bp_error* err);
/* A handle of the default group, to be released. BP_INVALID if there is none. */
BP_API int32_t bp_default_group(bp_group** group, bp_error* err);

/* Makes a group that is nobody's default. Blocks until all ranks have come; fails on all, with the reason, if one that
 * comes cannot choose its backend. */
BP_API int32_t bp_group_create(const bp_group_config* config, bp_group** group, bp_error* err);
/* A group of some of the parent's ranks. Called by ALL ranks of the parent, in the same order everywhere, with the same
 * `ranks` (ranks in the parent, each once; their order is the new group's). A rank that is not among them gets a handle
 * on which every operation is BP_INVALID ("rank 3 is not a member of group g"), and rank -1. BP_INHERIT_TIMEOUT: the
 * parent's timeout. name NULL: made up from the parent's. */
BP_API int32_t bp_group_new(bp_group* parent, const int32_t* ranks, uint64_t count, const char* name,
                            int64_t timeout_ns, bp_group** group, bp_error* err);
/* The same, called by the members of the new group only (MPI_Comm_create_group, torch's use_local_synchronization).
 * Members that make several groups of the same ranks make them in the same order. Other ranks are not involved; a rank
 * that is not in `ranks` gets BP_INVALID. */
BP_API int32_t bp_group_new_by_members(bp_group* parent, const int32_t* ranks, uint64_t count, const char* name,
                                       int64_t timeout_ns, bp_group** group, bp_error* err);
/* A group of the same ranks over another backend, written as in bp_group_config. Called by ALL ranks of the parent, in
 * the same order everywhere. It ends with the parent. BP_INHERIT_TIMEOUT: the parent's timeout. */
BP_API int32_t bp_group_with_backend(bp_group* parent, const char* backend, int64_t timeout_ns, bp_group** group,
                                     bp_error* err);
/* Groups of the ranks that gave the same colour, ordered by key, then by rank in the parent. Called by all ranks of the
 * parent. A negative colour joins no group and gets a non-member handle. */
BP_API int32_t bp_group_split(bp_group* parent, int64_t color, int64_t key, bp_group** group, bp_error* err);
/* A group of those members of `group` that are left, in the same order and numbered anew from 0, usable at once: how
 * the survivors of a death go on. Called by ALL members that live, as often as each other; `group` may be broken, and
 * mostly is. It stays as it was: destroy it when you like, the new group does not end with it, and its other subgroups
 * are not touched.
 *
 * Blocks until each member has either come or is known to be gone (its process ended, was silent for too long, or
 * left), up to timeout_ns (BP_INHERIT_TIMEOUT: the group's), and then until the new group has started. All survivors
 * get the same members; if one more dies meanwhile, they agree again without it. A lone survivor gets a group of one.
 * bp_group_global_rank of the new group says who is left.
 *
 * BP_TIMEOUT names the ranks that did not come and are not known to be gone; calling it again goes on from there.
 * BP_PEER_LOST: the store through which the ranks would agree is gone with the process that served it (so let a
 * launcher serve it, not rank 0), or the others have given this rank up. BP_INVALID: not a member, destroyed, or
 * another thread is in this call. Deaths are noticed in a job's own store (env://, tcp://, file://) and in TCP and file
 * stores that a program gives; a store in memory and one of callbacks know only of ranks that left. */
BP_API int32_t bp_group_shrink(bp_group* group, int64_t timeout_ns, bp_group** shrunk, bp_error* err);
/* Ends the group: operations in flight fail, the backend is closed. Later calls on any handle of it are BP_INVALID. Not
 * collective. Ending it twice is fine. */
BP_API int32_t bp_group_destroy(bp_group* group, bp_error* err);
/* Makes everything pending and everything later fail with BP_CANCELLED and this text. Does not wait for peers. */
BP_API int32_t bp_group_abort(bp_group* group, const char* why, bp_error* err);
/* BP_OK if the group is whole; else why it is broken, or BP_INVALID if it was destroyed or this rank is no member. Does
 * not block. */
BP_API int32_t bp_group_status(bp_group* group, bp_error* err);
/* An extension of the backend that serves this kind of memory, by id ("backplane.native/1" for the handle of the
 * library below, see backplane/abi/ext/native.h); NULL if it has none. Valid until the group ends. The table is the
 * backend's own: layers do not see what is called through it. */
BP_API const void* bp_group_extension(bp_group* group, uint32_t memory, const char* id);
/* Another handle of the same group; NULL only if there is no memory for it. */
BP_API bp_group* bp_group_retain(bp_group* group);
/* Gives a handle back; the last one ends the group. */
BP_API void bp_group_release(bp_group* group);

BP_API int32_t bp_group_rank(const bp_group* group); /* -1 on a non-member */
BP_API int32_t bp_group_world_size(const bp_group* group);
BP_API const char* bp_group_name(const bp_group* group); /* valid as long as the handle */
/* The id of the backend that serves this kind of memory (BP_HOST ...), NULL if none. */
BP_API const char* bp_group_backend(const bp_group* group, uint32_t memory);
/* The rank in the job's first group of this group's `rank`, -1 if out of range. */
BP_API int32_t bp_group_global_rank(const bp_group* group, int32_t rank);

/* Performs an operation (backplane/abi/op.h says what each means) and waits for it. op->seq and op->flags are ignored;
 * op->timeout_ns may be BP_INHERIT_TIMEOUT (the group's); tags are below 2^32; displacements may be NULL where counts
 * are given (blocks without gaps). All arguments are checked before anything is sent. If a collective fails once it has
 * begun, the group is broken: everything later fails at once with that first cause. */
BP_API int32_t bp_group_run(bp_group* group, const bp_op* op, bp_error* err);
/* The same without waiting. The buffers, and op->result if it is given, must stay valid until the request
 * is terminal. */
BP_API int32_t bp_group_submit(bp_group* group, const bp_op* op, bp_request** request, bp_error* err);
/* Several operations at once: requests[i] belongs to ops[i]. All or nothing. A backend may start messages
 * of a batch together; each of them may then be done only when all that go to (or come from) the same peer are. */
BP_API int32_t bp_group_submit_batch(bp_group* group, const bp_op* const* ops, uint64_t count, bp_request** requests,
                                     bp_error* err);

/* A send and a recv at once, so that ranks that exchange with each other do not wait for each other. Waits for both;
 * the error is that of the recv if it failed, else that of the send. */
BP_API int32_t bp_group_sendrecv(bp_group* group, const bp_op* send, const bp_op* recv, bp_error* err);
/* Gather, scatter, all_gather, all_to_all and reduce_scatter with a list of W buffers, one per rank, in place of the
 * one buffer of N*W elements: `inputs` for op->input, `outputs` for op->output, NULL where the operation has N elements
 * or this rank has none. Each buffer of a list has N elements. Host memory that does not follow in one run is copied
 * through memory of the group's; other memory must, else BP_UNSUPPORTED. The lists are not needed after the return.
 * With `request` (NULL: waits) as bp_group_submit. Ranks with lists and ranks with one buffer understand each other. */
BP_API int32_t bp_group_run_list(bp_group* group, const bp_op* op, const bp_buffer* inputs, const bp_buffer* outputs,
                                 bp_request** request, bp_error* err);

/* A matched probe: takes the oldest message from `peer` (or BP_ANY_SOURCE) with `tag` (or BP_ANY_TAG) that no recv has
 * taken, so that memory can be found for it. *result says its source, size and tag. Waits up to timeout_ns; BP_TIMEOUT:
 * none came. One recv with bp_op.message set receives the message; it releases the handle, whether it succeeds or not.
 * BP_UNSUPPORTED if the backend cannot probe. */
BP_API int32_t bp_group_probe(bp_group* group, int32_t peer, uint64_t tag, int64_t timeout_ns, bp_message** message,
                              bp_result* result, bp_error* err);
/* Drops a message that no recv has received. */
BP_API void bp_message_release(bp_message* message);

/* BP_OK: done. BP_AGAIN: in flight. Anything else: failed, the same each time. Does not block. */
BP_API int32_t bp_request_test(bp_request* request, bp_error* err);
/* Waits up to timeout_ns, and never longer than until the operation's own deadline (BP_NO_TIMEOUT and
 * BP_INHERIT_TIMEOUT: until that). BP_AGAIN: still in flight. */
BP_API int32_t bp_request_wait(bp_request* request, int64_t timeout_ns, bp_error* err);
/* Waits until at least one of `count` requests has ended, and gives the lowest such index: *index. The return value is
 * how that one ended. BP_AGAIN when timeout_ns is over (as bp_request_wait): none has, and *index is `count`. */
BP_API int32_t bp_request_wait_any(bp_request* const* requests, uint64_t count, int64_t timeout_ns, uint64_t* index,
                                   bp_error* err);
/* Has `ended(ctx, status, error)` called once when the operation has ended: at once, if it has; else from any thread,
 * also after the request was released, and at the latest before the end of the group returns. `error` is valid during
 * the call. A wait may return before it. The callback must neither wait for operations nor end a group (BP_INVALID),
 * but it may start operations and release handles. Several callbacks are called in their order. */
BP_API int32_t bp_request_on_done(bp_request* request, void (*ended)(void* ctx, int32_t status, const bp_error* error),
                                  void* ctx, bp_error* err);
/* Has `stream` (cudaStream_t, of the buffers' device) wait for the operation: what is put into it from now on runs
 * after the operation. Does not wait until the operation is done, if its backend works in streams (nccl), but until it
 * is in one: while peers are being connected, and a message until its other end is there. Elsewhere the same as
 * waiting. The buffers stay busy until the request is terminal, and only bp_request_test and bp_request_wait tell of a
 * failure that comes later: streams go on then. */
BP_API int32_t bp_request_wait_on_stream(bp_request* request, void* stream, bp_error* err);
/* What a recv that is done has received (zeros and source -1 for other kinds); *result has its struct_size set. */
BP_API void bp_request_result(bp_request* request, bp_result* result);
/* Asks the operation to end with BP_CANCELLED. A collective that is cancelled breaks its group. */
BP_API void bp_request_cancel(bp_request* request);
/* Allowed at any time. An operation in flight goes on: its buffers must stay valid, and are busy, until it is terminal
 * or bp_group_destroy has returned, just as if the request still existed. It ends at its deadline although nobody waits
 * for it; bp_request_on_done says when. */
BP_API void bp_request_release(bp_request* request);

/* ---- Memory that operations reach directly ------------------------------------------------------------------------
 */

typedef struct bp_memory bp_memory;

/* Memory for `bytes` bytes from the backend that serves this kind of memory (BP_HOST ...), on device `device` (0 for
 * BP_HOST): operations of this group whose buffers lie in it need not copy them aside (shm: all_reduce up to several
 * times as fast). Each rank for itself; ranks with such buffers and ranks with ordinary ones understand each other.
 * Where the backend has none to give, host memory is ordinary memory, so that programs need not ask; BP_CUDA is
 * BP_UNSUPPORTED. BP_RESOURCE if there is not so much. What it holds is undefined. Does not wait for anybody. A child
 * of fork does not have it. What the output of a collective that failed holds is undefined, also where it was the
 * input. */
BP_API int32_t bp_group_allocate(bp_group* group, uint64_t bytes, uint32_t memory, int32_t device, bp_memory** result,
                                 bp_error* err);
/* Prepares memory of the program's for operations of this group, as ncclCommRegister does. The program keeps it valid
 * until the result is released. Where the backend registers nothing, or not this memory, the result is ordinary memory
 * (bp_memory_native says 0), so that programs need not ask. */
BP_API int32_t bp_group_register(bp_group* group, void* data, uint64_t bytes, uint32_t memory, int32_t device,
                                 bp_memory** result, bp_error* err);
/* Where it begins, aligned to 64 bytes or better; NULL if it has no bytes. Valid until released, also when the group
 * has ended. */
BP_API void* bp_memory_data(const bp_memory* memory);
/* 1 if it is the backend's, 0 if it is ordinary memory. */
BP_API int32_t bp_memory_native(const bp_memory* memory);
/* Not while an operation uses it; before or after the group has ended. */
BP_API void bp_memory_release(bp_memory* memory);

/* ---- Objects: byte strings of any length, each rank's its own ------------------------------------------------------
 */

typedef struct bp_objects bp_objects; /* what was received, in rank order */

/* kind BP_BROADCAST: `in` at the root, one object out everywhere. BP_GATHER: `in` everywhere, W objects out at the
 * root, none elsewhere. BP_ALL_GATHER: W objects out everywhere. BP_SCATTER: W objects in at the root (in_count W), one
 * out everywhere. Blocks. Other kinds are BP_INVALID. The objects of one rank may hold up to 2^40 bytes together. */
BP_API int32_t bp_group_exchange_objects(bp_group* group, uint32_t kind, int32_t root, const void* const* in,
                                         const uint64_t* in_sizes, uint64_t in_count, int64_t timeout_ns,
                                         bp_objects** out, bp_error* err);
/* An object as a message. Tags of objects are apart from those of bp_op. bp_group_recv_object gives one object, and its
 * sender in *source (may be NULL); `peer` may be BP_ANY_SOURCE. Both block up to timeout_ns. */
BP_API int32_t bp_group_send_object(bp_group* group, const void* object, uint64_t size, int32_t peer, uint32_t tag,
                                    int64_t timeout_ns, bp_error* err);
BP_API int32_t bp_group_recv_object(bp_group* group, int32_t peer, uint32_t tag, int64_t timeout_ns, bp_objects** out,
                                    int32_t* source, bp_error* err);
BP_API uint64_t bp_objects_count(const bp_objects* objects);
/* The bytes of object i; valid until released. */
BP_API const void* bp_objects_get(const bp_objects* objects, uint64_t i, uint64_t* size);
BP_API void bp_objects_release(bp_objects* objects);

/* ---- What happened ------------------------------------------------------------------------------------------------
 */

/* The flight recorder of a group: its last operations, oldest first, as JSON for bp_free. */
BP_API int32_t bp_group_trace(bp_group* group, char** json, bp_error* err);
/* The flight recorders of all ranks of a running job, asked through its store by somebody who need not be a rank:
 * {"world_size": W, "silent": [ranks that did not answer], "traces": [what bp_group_trace says, per rank and group]}.
 * `group`: name of the job's first group, NULL for the usual "world". Blocks up to timeout_ns; BP_TIMEOUT if no such
 * group works with this store. */
BP_API int32_t bp_store_trace(bp_store* store, const char* group, int64_t timeout_ns, char** json, bp_error* err);

/* Where log lines of the library and its plugins go; NULL: stderr, from the level that BACKPLANE_LOG names (debug,
 * info, warn, error, off; warn by default). `log` may be called from any thread. */
BP_API void bp_set_log(void (*log)(void* ctx, uint32_t level, const char* text), void* ctx);

#ifdef __cplusplus
}
#endif

#endif
