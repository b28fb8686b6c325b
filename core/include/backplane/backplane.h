/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API of Backplane, exported by libbackplane.so, for every language that can call C. The C++ API (backplane.hpp)
 * is a set of headers over these functions.
 *
 * The conventions are those of the plugin ABI (backplane/abi/version.h): statuses as int32_t, errors in a caller-owned
 * bp_error (may be NULL), durations in nanoseconds with BP_NO_TIMEOUT and BP_INHERIT_TIMEOUT, growing structs with
 * struct_size first, strings UTF-8. Every function may be called from any thread unless it says otherwise. Handles are
 * opaque. Each *_release drops one reference, accepts NULL, and blocks no longer than the documented end of its object.
 * A NULL pointer or a released handle is BP_INVALID; functions without a status return -1, 0 or NULL. A released handle
 * is recognised until a thousand others of its type have been released after it. In a child made by fork the handles of
 * its parent are BP_INVALID, and releasing them has no effect there, except for registries, options and objects
 * (documentation, "Fork").
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

/* The version of these headers; bp_version() returns that of the library. */
#define BP_VERSION_MAJOR 1
#define BP_VERSION_MINOR 0
#define BP_VERSION_PATCH 0
#define BP_VERSION (BP_VERSION_MAJOR * 10000 + BP_VERSION_MINOR * 100 + BP_VERSION_PATCH)

/* "1.0.0". Static. */
BP_API const char* bp_version(void);

/* Names of the constants of backplane/abi: "f32" for BP_F32, "sum" for BP_SUM, "all_reduce" for BP_ALL_REDUCE,
 * "peer_lost" for BP_PEER_LOST; for other values "unknown dtype" and the like. Static. */
BP_API const char* bp_dtype_name(uint32_t dtype);
BP_API const char* bp_reduce_op_name(uint32_t reduce_op);
BP_API const char* bp_op_name(uint32_t kind);
BP_API const char* bp_status_name(int32_t status);

/* Sets a hook for language interpreters that handle signals in it. Each thread that blocks in a function of this API
 * (also rpc.h, and the waits of the C++ API) calls `interrupted(ctx)` about every 100 ms, on that thread and without a
 * lock. A nonzero result ends the call with BP_CANCELLED as if its deadline had passed: the operation that the call
 * performs or waits for is cancelled, which breaks its group if it is a collective, and its buffers are free. The hook
 * may call any function except blocking functions of this API. NULL removes the hook. */
BP_API void bp_set_interrupt_hook(int32_t (*interrupted)(void* ctx), void* ctx);
/* Calls the hook on this thread, for waits of the program itself. Returns nonzero if the wait should end, 0 without a
 * hook. */
BP_API int32_t bp_interrupted(void);

/* Frees a string that a function of this API returned through a char**. */
BP_API void bp_free(void* text);

/* ---- Stores: the key-value space through which ranks find each other ----------------------------------------------
 */

typedef struct bp_store bp_store;
typedef struct bp_store_server bp_store_server;

/* Listens on host:port (0: any free port) and serves a store until released. `host` is a name or an address of this
 * machine, not a wildcard, or "auto": the address of the interface of the default route, else the first address of the
 * host name that is not loopback, else 127.0.0.1. `job_id` (NULL: "") must equal that of the clients. If
 * BACKPLANE_SECRET_FILE or BACKPLANE_SECRET_FD names a secret of the job, the clients must have the same one
 * (documentation, "Security"). BP_RESOURCE if the port is in use. */
BP_API int32_t bp_store_server_start(const char* host, uint16_t port, const char* job_id, bp_store_server** server,
                                     bp_error* err);
BP_API uint16_t bp_store_server_port(const bp_store_server* server);
/* The numeric address it listens on: "10.0.0.1:29500", "[fd00::1]:29500". Valid as long as the server. */
BP_API const char* bp_store_server_address(const bp_store_server* server);
/* Blocks until no client is connected. The process that serves a store calls this before it exits, so that the other
 * processes can finish. Every client counts, including those of this process: release its stores and the groups made
 * over them first. Clients that have not connected yet do not count. BP_TIMEOUT gives the number of remaining clients
 * and names them. The server keeps serving. It must not be released during the call. */
BP_API int32_t bp_store_server_wait(bp_store_server* server, int64_t timeout_ns, bp_error* err);
BP_API void bp_store_server_release(bp_store_server* server); /* closes every client's connection */

/* Connects to a server, and retries for up to timeout_ns while there is no server. Blocks. */
BP_API int32_t bp_store_connect(const char* host, uint16_t port, const char* job_id, int64_t timeout_ns,
                                bp_store** store, bp_error* err);
/* Opens a store in a file that all ranks can open; creates the file if it is missing. */
BP_API int32_t bp_store_open_file(const char* path, bp_store** store, bp_error* err);
/* Creates a store in this process's memory. */
BP_API int32_t bp_store_create_inproc(bp_store** store, bp_error* err);
/* A view of `inner` that prepends `prefix` to every key. Keeps `inner` alive. */
BP_API int32_t bp_store_create_prefix(bp_store* inner, const char* prefix, bp_store** store, bp_error* err);
/* Creates a store from the program's functions: see bp_store_callbacks. BP_INVALID names a required one that is NULL.
 */
typedef struct bp_store_callbacks bp_store_callbacks;
BP_API int32_t bp_store_create_custom(const bp_store_callbacks* callbacks, bp_store** store, bp_error* err);
BP_API void bp_store_release(bp_store* store);

/* Values are bytes, up to 64 MiB; keys up to 4096 bytes. All block for at most timeout_ns (BP_INHERIT_TIMEOUT:
 * BP_DEFAULT_TIMEOUT_NS). Those that wait for keys end with BP_TIMEOUT, which names the key. */
BP_API int32_t bp_store_set(bp_store* store, const char* key, const void* value, uint64_t size, int64_t timeout_ns,
                            bp_error* err);
/* Waits for the key. *value is a copy, NUL-terminated beyond its size, to be freed with bp_free. */
BP_API int32_t bp_store_get(bp_store* store, const char* key, char** value, uint64_t* size, int64_t timeout_ns,
                            bp_error* err);
/* Adds to a counter, stored as decimal text; a missing key counts as 0. */
BP_API int32_t bp_store_add(bp_store* store, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ns,
                            bp_error* err);
BP_API int32_t bp_store_wait(bp_store* store, const char* const* keys, uint64_t count, int64_t timeout_ns,
                             bp_error* err);
/* Sets *exist to 1 if all keys exist now, else 0. Does not wait for them. */
BP_API int32_t bp_store_check(bp_store* store, const char* const* keys, uint64_t count, int32_t* exist,
                              int64_t timeout_ns, bp_error* err);
/* Sets the key if its value equals `expected` (an empty one also matches a missing key). *value, to be freed with
 * bp_free, is the value after the call. */
BP_API int32_t bp_store_compare_set(bp_store* store, const char* key, const void* expected, uint64_t expected_size,
                                    const void* desired, uint64_t desired_size, char** value, uint64_t* size,
                                    int64_t timeout_ns, bp_error* err);
BP_API int32_t bp_store_delete(bp_store* store, const char* key, int32_t* existed, int64_t timeout_ns, bp_error* err);
BP_API int32_t bp_store_num_keys(bp_store* store, int64_t* count, int64_t timeout_ns, bp_error* err);
/* For launchers: reports that the process of `rank` has ended. If it had not joined the job, the ranks that wait for it
 * fail with BP_PEER_LOST: "rank 1 (`identity`) is lost: `reason`". Otherwise the call has no effect. `identity`: host
 * and process, "node7, pid 17". `store`: the store of the job, without a prefix. BP_UNSUPPORTED unless it is a TCP
 * store. */
BP_API int32_t bp_store_report_end(bp_store* store, int32_t rank, const char* identity, const char* reason,
                                   int64_t timeout_ns, bp_error* err);

/* Receives the value that a callback found. Valid until the callback returns. */
typedef struct bp_store_answer bp_store_answer;

/* Copies the value into the answer; the last one set counts. A callback can end with
 * `return bp_store_answer_set(answer, value, size, err)`. BP_INVALID beyond 64 MiB. Does not block. */
BP_API int32_t bp_store_answer_set(bp_store_answer* answer, const void* value, uint64_t size, bp_error* err);

/* A key-value space that the program already has (etcd, Redis, Kubernetes, MPI, torch.distributed's Store), for
 * bp_store_create_custom. Every process creates its own store over the same space. bp_store_callbacks_init sets every
 * field to NULL; `name`, `ctx`, `num_keys` and `release` may stay NULL. The struct is copied; the object behind `ctx`
 * must stay valid until `release` is called.
 *
 * Each callback does what the bp_store function of its name does, for one key. It returns BP_OK, or an error status
 * with a text in *err; the call then fails with that status and text. Keys have 1 to 4096 bytes and no NUL, values up
 * to 64 MiB. No pointer except `ctx` is NULL; all are valid until the callback returns.
 *
 * Threads: [any], several at once, on threads of the core that block all signals. A callback may block and may use
 * other stores and groups. It must not use a group made over this store, and must not throw.
 *
 * Time: `timeout_ns` is at least 1 s, or BP_NO_TIMEOUT; for `get` it is 0 to 1 s. The core waits for a callback for up
 * to a second after the call's own timeout, but not after the abort of a group that is starting. The call then fails,
 * and the callback is detached: it keeps its thread until it returns.
 *
 * Limits: deaths are not detected through such a store, so bp_group_shrink finds only ranks whose groups were
 * destroyed. The keys of a group stay in the space: give each run of a job an empty space or its own prefix
 * (bp_store_create_prefix).
 */
struct bp_store_callbacks {
  uint32_t struct_size;
  uint32_t reserved;
  const char* name; /* for error texts: "etcd://10.0.0.1:2379"; copied. NULL: "the program's store" */
  void* ctx;        /* the first argument of every callback */
  int32_t (*set)(void* ctx, const char* key, const void* value, uint64_t size, int64_t timeout_ns, bp_error* err);
  /* Waits up to timeout_ns for the key (0: checks once). BP_TIMEOUT: the key is missing. A callback that cannot wait
   * returns BP_TIMEOUT at once; the core retries after 1 to 50 ms. */
  int32_t (*get)(void* ctx, const char* key, bp_store_answer* answer, int64_t timeout_ns, bp_error* err);
  /* Atomic among all processes. `get` must return the sum as decimal text. BP_INVALID: the current value is not a
   * decimal number, or the sum does not fit. */
  int32_t (*add)(void* ctx, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ns, bp_error* err);
  /* Atomic among all processes. An empty `expected` also matches a missing key. The answer is the value after the call,
   * empty if the key is missing. */
  int32_t (*compare_set)(void* ctx, const char* key, const void* expected, uint64_t expected_size, const void* desired,
                         uint64_t desired_size, bp_store_answer* answer, int64_t timeout_ns, bp_error* err);
  int32_t (*delete_key)(void* ctx, const char* key, int32_t* existed, int64_t timeout_ns, bp_error* err);
  /* NULL: bp_store_num_keys returns BP_UNSUPPORTED. The core itself does not call it. */
  int32_t (*num_keys)(void* ctx, int64_t* count, int64_t timeout_ns, bp_error* err);
  /* Called once, when the store and everything made from it has been released and every callback has returned, on the
   * thread that releases the last of them. Not called if bp_store_create_custom fails. */
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
typedef struct bp_backend_options bp_backend_options; /* the result of an options handler */
typedef struct bp_group bp_group;

/* The registry of the process. Must not be released. NULL means this registry wherever a registry is a parameter. */
BP_API bp_registry* bp_registry_default(void);
BP_API int32_t bp_registry_create(bp_registry** registry, bp_error* err);
/* Call only after everything made with it has been released. */
BP_API void bp_registry_release(bp_registry* registry);

/* Returns 1 if `name` (case is ignored) is registered, built in, or in a plugin file of the search path. Runs no plugin
 * code. */
BP_API int32_t bp_backend_registered(bp_registry* registry, const char* name);
/* Adds a backend of this program. The descriptor and everything it points to must outlive the registry. BP_INVALID "RPC
 * backend X: already registered". *type may be NULL. */
BP_API int32_t bp_register_backend(bp_registry* registry, const bp_backend* backend, const bp_backend_type** type,
                                   bp_error* err);
/* Finds a member by name, and loads its plugin if necessary. The error for an unknown name lists the backends found,
 * the directories searched and the rejected files with reasons, and suggests the nearest name. */
BP_API int32_t bp_backend_lookup(bp_registry* registry, const char* name, const bp_backend_type** type, bp_error* err);
/* "GLOO"; its repr is "BackendType.GLOO". */
BP_API const char* bp_backend_type_name(const bp_backend_type* type);
BP_API const bp_backend* bp_backend_type_descriptor(const bp_backend_type* type);
/* The options handler: checks keys and values against the schema and fills in defaults. */
BP_API int32_t bp_construct_backend_options(const bp_backend_type* type, int64_t rpc_timeout_ns,
                                            const char* init_method, const bp_key_value* values, uint64_t count,
                                            bp_backend_options** options, bp_error* err);
/* The value of an option as normalised text ("***" for secrets); NULL for an unknown key. Valid as long as the options.
 */
BP_API const char* bp_backend_options_get(const bp_backend_options* options, const char* key);
BP_API void bp_backend_options_release(bp_backend_options* options);
/* The init handler: creates this rank's part of a process group. `options` must come from the same member. BP_INVALID
 * "rank argument R doesn't match pg rank P" if the backend disagrees. Blocks until all ranks have called it, up to
 * timeout_ns. */
BP_API int32_t bp_init_backend(const bp_backend_type* type, bp_store* store, const char* name, int32_t rank,
                               int32_t world_size, const bp_backend_options* options, int64_t timeout_ns,
                               bp_group** group, bp_error* err);

/* Searches the plugin directories again and forgets earlier rejections. Lookups notice new files without it. */
BP_API void bp_registry_rescan(bp_registry* registry);
/* The backends found, as JSON to be freed with bp_free: {"directories": [...], "backends": [...], "rejected": [...]}.
 * Runs no plugin code. */
BP_API int32_t bp_registry_list(bp_registry* registry, char** json, bp_error* err);
/* Everything about one backend (options, capabilities, file, versions), as JSON to be freed with bp_free. Loads its
 * plugin. */
BP_API int32_t bp_registry_info(bp_registry* registry, const char* name, char** json, bp_error* err);
/* BP_OK if the backend is viable on this machine, else BP_UNSUPPORTED with the reason. Loads its plugin and runs its
 * probe in this process; remarks of the probe about the machine are logged (BP_LOG_INFO). */
BP_API int32_t bp_registry_probe(bp_registry* registry, const char* name, bp_error* err);
/* Loads one plugin file, wherever it lies, with the same checks as a lookup, and returns what bp_registry_info reports
 * of each of its backends, as a JSON array to be freed with bp_free. Fails with the reason if the core refuses the
 * file. Registers nothing. */
BP_API int32_t bp_plugin_file_info(const char* path, char** json, bp_error* err);

/* ---- Process groups -----------------------------------------------------------------------------------------------
 */

/* How a group is created. bp_group_config_init gives every field its default. Valid during the call. */
typedef struct bp_group_config {
  uint32_t struct_size;
  int32_t rank;            /* -1: from the init method or the environment */
  int32_t world_size;      /* -1: likewise */
  int32_t device;          /* ordinal of the device that this rank computes on; -1: none */
  const char* backend;     /* "gloo", "gloo?iface=eth0&threads=2", "cpu:gloo,cuda:nccl", "auto"; NULL: the environment's
                              BACKPLANE_BACKEND, else "auto" */
  const char* init_method; /* "env://" (the default), "tcp://host:port", "file:///path"; unused if `store` is given */
  const char* name;        /* of the group, for messages; NULL: "world" */
  bp_store* store;         /* instead of init_method; requires rank and world_size */
  bp_registry* registry;   /* NULL: the default one */
  int64_t timeout_ns;      /* for init and, by default, for each operation; BP_INHERIT_TIMEOUT: BP_DEFAULT_TIMEOUT_NS */
} bp_group_config;

static inline void bp_group_config_init(bp_group_config* config) {
  const bp_group_config defaults = {sizeof *config, -1, -1, -1, NULL, NULL, NULL, NULL, NULL, BP_INHERIT_TIMEOUT};
  *config = defaults;
}

/* An asynchronous operation. */
typedef struct bp_request bp_request;

/* Creates the process-wide default group. BP_INVALID if there is one already ("twice"). A backend with BP_BACKEND_LOCAL
 * creates a group without making it the default. *group (may be NULL) is a handle to be released. Blocks until all
 * ranks have called it. */
BP_API int32_t bp_init_process_group(const bp_group_config* config, bp_group** group, bp_error* err);
BP_API int32_t bp_is_initialized(void);
/* Ends the default group and every group made from it. BP_INVALID if there is none. */
BP_API int32_t bp_destroy_process_group(bp_error* err);
/* A handle of the default group, to be released. BP_INVALID if there is none. */
BP_API int32_t bp_default_group(bp_group** group, bp_error* err);

/* Creates a group without making it the default. Blocks until all ranks have called it. Fails on all ranks, with the
 * reason, if one of them cannot choose its backend. */
BP_API int32_t bp_group_create(const bp_group_config* config, bp_group** group, bp_error* err);
/* Creates a group of some of the parent's ranks. ALL ranks of the parent must call it, in the same order, with the same
 * `ranks` (ranks in the parent, each once; their order is that of the new group), a call with an invalid list too. A
 * rank that is not in `ranks` gets a handle with rank -1 on which every operation is BP_INVALID ("rank 3 is not a
 * member of group g"). BP_INHERIT_TIMEOUT: the parent's timeout. name NULL: derived from the parent's. */
BP_API int32_t bp_group_new(bp_group* parent, const int32_t* ranks, uint64_t count, const char* name,
                            int64_t timeout_ns, bp_group** group, bp_error* err);
/* The same, called by the members of the new group only (MPI_Comm_create_group, torch's use_local_synchronization).
 * Members that create several groups of the same ranks do so in the same order. Other ranks are not involved;
 * BP_INVALID on a rank that is not in `ranks`. */
BP_API int32_t bp_group_new_by_members(bp_group* parent, const int32_t* ranks, uint64_t count, const char* name,
                                       int64_t timeout_ns, bp_group** group, bp_error* err);
/* Creates a group of the same ranks over another backend, written as in bp_group_config. ALL ranks of the parent must
 * call it, in the same order. The group ends with the parent. BP_INHERIT_TIMEOUT: the parent's timeout. */
BP_API int32_t bp_group_with_backend(bp_group* parent, const char* backend, int64_t timeout_ns, bp_group** group,
                                     bp_error* err);
/* Creates one group for each colour, of the ranks that pass it, ordered by key, then by rank in the parent. All ranks
 * of the parent must call it. A rank with a negative colour joins no group and gets a non-member handle. */
BP_API int32_t bp_group_split(bp_group* parent, int64_t color, int64_t key, bp_group** group, bp_error* err);
/* Creates a group of the surviving members of `group`, in the same order, renumbered from 0. ALL surviving members must
 * call it, equally often. `group` may be broken. It is not changed: destroy it at any time; the new group does not end
 * with it, and its other subgroups are unaffected.
 *
 * Blocks until each member has either called it or is known to be lost (its process ended, was silent for too long, or
 * left), up to timeout_ns (BP_INHERIT_TIMEOUT: the group's), and then until the new group has started. All survivors
 * get the same members; if another one dies meanwhile, they agree again without it. A single survivor gets a group of
 * one. bp_group_global_rank of the new group identifies the survivors.
 *
 * BP_TIMEOUT names the ranks that have not called it and are not known to be lost; a second call continues.
 * BP_PEER_LOST: the store through which the ranks agree was lost with the process that served it (a launcher should
 * serve it, not rank 0), or the others count this rank as lost. BP_INVALID: not a member, destroyed, or another thread
 * is in this call. Deaths are detected in a job's own store (env://, tcp://, file://) and in TCP and file stores that a
 * program passes; a store in memory or of callbacks detects only ranks that left. */
BP_API int32_t bp_group_shrink(bp_group* group, int64_t timeout_ns, bp_group** shrunk, bp_error* err);

/* Takes newcomers into the job: creates a group of all members of `group` and of the processes that wait in
 * bp_group_join with the same store. ALL members must call it, equally often, at the same point of the program, such as
 * the end of a step. `store`: the same key-value space on all members and newcomers, each through a handle of its own
 * process; it must outlive the new group's processes, so a launcher or another process that stays should serve it. It
 * serves one group at a time: give others a prefix (bp_store_create_prefix).
 *
 * Rank 0 reads once who has asked, and all members follow its decision. The new group has the members' ranks, followed
 * by the newcomers in the order of asking; it has the backend selection, layers and timeout of `group`, global ranks
 * of its own (equal to its ranks), and does not end with `group`, which is not changed: destroy it at any time.
 *
 * BP_AGAIN: there is no new group and `group` continues; call it again at a later point. *err says why: no process has
 * asked (a few store requests per member, no waiting except for rank 0), the newcomers chose other backends or options
 * than the members and were refused, or a newcomer was lost or gave up before the new group had started. Other errors
 * leave `group` usable too, unless a member was lost: BP_PEER_LOST (then shrink first, and grow the result).
 * BP_TIMEOUT: a member did not call it, or a newcomer did not come, within timeout_ns (BP_INHERIT_TIMEOUT: the
 * group's). BP_UNSUPPORTED: the backend takes no newcomers (mpi). BP_INVALID: `group` is destroyed or this rank not a
 * member. Newcomers whose attempt failed through no fault of theirs keep waiting. Deaths of newcomers are detected as
 * in bp_group_shrink; with other stores they are noticed at the timeout. */
BP_API int32_t bp_group_grow(bp_group* group, bp_store* store, int64_t timeout_ns, bp_group** grown, bp_error* err);
/* The newcomer's part: asks to join, waits until the members of a group call bp_group_grow with the same store, and
 * returns the new group. `config`: `store` is required; `backend` must select what the members selected; `rank` and
 * `world_size` stay -1, and `name` and `init_method` are unused. timeout_ns limits the whole call (BP_INHERIT_TIMEOUT:
 * config->timeout_ns, which is also the default of the group's operations on this rank).
 *
 * Blocks, also over failed attempts of the members. BP_TIMEOUT: no group took it; the request is withdrawn.
 * BP_INVALID: the members refused it, with both selections in the text. Other errors: this rank, or another one, could
 * not start the backend. */
BP_API int32_t bp_group_join(const bp_group_config* config, int64_t timeout_ns, bp_group** group, bp_error* err);
/* Sets *count to the number of processes that wait in bp_group_join with this store. One or two store requests. Ranks
 * may see different numbers: one rank reads it and tells the others, for example in an operation that they perform
 * anyway, so that members call bp_group_grow only when there is a newcomer. */
BP_API int32_t bp_store_newcomers(bp_store* store, int64_t* count, int64_t timeout_ns, bp_error* err);
/* Ends the group: operations in flight fail, the backend is closed. Later calls on any handle of it are BP_INVALID. Not
 * collective. A second call has no effect. */
BP_API int32_t bp_group_destroy(bp_group* group, bp_error* err);
/* Makes all pending and later operations fail with BP_CANCELLED and the text `why`, on all ranks: the others learn of
 * it through the store, and get this rank as the peer rank. Does not wait for peers. */
BP_API int32_t bp_group_abort(bp_group* group, const char* why, bp_error* err);
/* BP_OK if the group is usable; else the reason why it is broken, or BP_INVALID if it was destroyed or this rank is not
 * a member. Does not block. */
BP_API int32_t bp_group_status(bp_group* group, bp_error* err);
/* An extension of the backend that serves this kind of memory, by id ("backplane.native/1" for the handle of the
 * underlying library, see backplane/abi/ext/native.h); NULL if it has none. Valid until the group ends. The table is
 * the backend's own: calls through it bypass the layers. */
BP_API const void* bp_group_extension(bp_group* group, uint32_t memory, const char* id);
/* Creates another handle of the same group; NULL only if there is no memory for it. */
BP_API bp_group* bp_group_retain(bp_group* group);
/* Drops a handle; the last one ends the group. */
BP_API void bp_group_release(bp_group* group);

BP_API int32_t bp_group_rank(const bp_group* group); /* -1 on a non-member */
BP_API int32_t bp_group_world_size(const bp_group* group);
BP_API const char* bp_group_name(const bp_group* group); /* valid as long as the handle */
/* The id of the backend that serves this kind of memory (BP_HOST ...), NULL if none. */
BP_API const char* bp_group_backend(const bp_group* group, uint32_t memory);
/* The rank in the job's first group of this group's `rank`; -1 if out of range. */
BP_API int32_t bp_group_global_rank(const bp_group* group, int32_t rank);

/* Performs an operation (backplane/abi/op.h defines each) and waits for it. op->seq and op->flags are ignored;
 * op->timeout_ns may be BP_INHERIT_TIMEOUT (the group's); tags are below 2^32; displacements may be NULL where counts
 * are given (adjacent blocks). All arguments are checked before anything is sent. A collective that fails after it
 * began breaks the group: later operations fail at once with that first cause. */
BP_API int32_t bp_group_run(bp_group* group, const bp_op* op, bp_error* err);
/* The same without waiting. The buffers, and op->result if given, must stay valid until the request is terminal. */
BP_API int32_t bp_group_submit(bp_group* group, const bp_op* op, bp_request** request, bp_error* err);
/* Submits several operations: requests[i] belongs to ops[i]. All or none are submitted. A backend may start messages of
 * a batch together; those to (or from) the same peer may then all be done only when the last of them is. */
BP_API int32_t bp_group_submit_batch(bp_group* group, const bp_op* const* ops, uint64_t count, bp_request** requests,
                                     bp_error* err);

/* Sends and receives at the same time, so that ranks that exchange messages do not deadlock. Waits for both; returns
 * the error of the recv if it failed, else that of the send. */
BP_API int32_t bp_group_sendrecv(bp_group* group, const bp_op* send, const bp_op* recv, bp_error* err);
/* Gather, scatter, all_gather, all_to_all and reduce_scatter with a list of W buffers, one per rank, instead of one
 * buffer of N*W elements: `inputs` for op->input, `outputs` for op->output, NULL where the operation has N elements or
 * this rank has none. Each buffer of a list has N elements. Host buffers that are not adjacent are copied through
 * memory of the group; other memory must be adjacent, else BP_UNSUPPORTED. The lists are copied. With `request` it
 * behaves like bp_group_submit; NULL: waits. Ranks with lists and ranks with one buffer can be mixed. */
BP_API int32_t bp_group_run_list(bp_group* group, const bp_op* op, const bp_buffer* inputs, const bp_buffer* outputs,
                                 bp_request** request, bp_error* err);

/* A matched probe: takes the oldest message from `peer` (or BP_ANY_SOURCE) with `tag` (or BP_ANY_TAG) that no recv has
 * taken, and sets *result to its source, size and tag, so that a buffer can be allocated. Waits up to timeout_ns;
 * BP_TIMEOUT: no message came. The message is received by one recv with bp_op.message set, which releases the handle,
 * also if it fails. BP_UNSUPPORTED if the backend cannot probe. */
BP_API int32_t bp_group_probe(bp_group* group, int32_t peer, uint64_t tag, int64_t timeout_ns, bp_message** message,
                              bp_result* result, bp_error* err);
/* Drops a probed message that was not received. */
BP_API void bp_message_release(bp_message* message);

/* BP_OK: done. BP_AGAIN: in flight. Any other status: failed; the same each time. Does not block. */
BP_API int32_t bp_request_test(bp_request* request, bp_error* err);
/* Waits up to timeout_ns, but not beyond the operation's own deadline (BP_NO_TIMEOUT and BP_INHERIT_TIMEOUT: until that
 * deadline). BP_AGAIN: still in flight. */
BP_API int32_t bp_request_wait(bp_request* request, int64_t timeout_ns, bp_error* err);
/* Waits until at least one of `count` requests has ended and sets *index to the lowest index that has. Returns the
 * status of that request. BP_AGAIN after timeout_ns (as bp_request_wait): none has ended, and *index is `count`. */
BP_API int32_t bp_request_wait_any(bp_request* const* requests, uint64_t count, int64_t timeout_ns, uint64_t* index,
                                   bp_error* err);
/* Calls `ended(ctx, status, error)` once when the operation has ended: at once if it has; else from any thread, also
 * after the request was released, and before the end of the group returns at the latest. `error` is valid during the
 * call. A wait may return before the callback runs. The callback must not wait for operations or end a group
 * (BP_INVALID); it may start operations and release handles. Several callbacks are called in the order of their
 * registration. */
BP_API int32_t bp_request_on_done(bp_request* request, void (*ended)(void* ctx, int32_t status, const bp_error* error),
                                  void* ctx, bp_error* err);
/* Makes `stream` (cudaStream_t, of the buffers' device) wait for the operation: work enqueued from now on runs after
 * it. With a backend that works in streams (nccl), blocks only until the operation is enqueued: while peers are being
 * connected, and for a message until its peer has been found. With other backends, the same as waiting. The buffers
 * stay busy until the request is terminal. A later failure is reported by bp_request_test and bp_request_wait only;
 * streams continue. */
BP_API int32_t bp_request_wait_on_stream(bp_request* request, void* stream, bp_error* err);
/* The result of a recv that is done (zeros and source -1 for other kinds); the caller sets struct_size of *result. */
BP_API void bp_request_result(bp_request* request, bp_result* result);
/* Requests that the operation end with BP_CANCELLED. A cancelled collective breaks its group. */
BP_API void bp_request_cancel(bp_request* request);
/* Allowed at any time. An operation in flight continues: its buffers must stay valid, and are busy, until it is
 * terminal or bp_group_destroy has returned, as if the request still existed. It ends at its deadline even if the
 * program does not wait for it; bp_request_on_done reports the end. */
BP_API void bp_request_release(bp_request* request);

/* ---- Memory that operations access directly -----------------------------------------------------------------------
 */

typedef struct bp_memory bp_memory;

/* Allocates `bytes` bytes of this kind of memory (BP_HOST ...) on device `device` (0 for BP_HOST) from the backend that
 * serves it: operations of this group on buffers in it avoid staging copies (shm: all_reduce up to several times as
 * fast). Local: does not wait for other ranks, which may use such buffers or ordinary ones. If the backend has no such
 * memory, BP_HOST is ordinary memory, and BP_CUDA is BP_UNSUPPORTED. BP_RESOURCE: not enough memory. The contents are
 * undefined. A child of fork does not have the memory. The output of a failed collective is undefined, also if it was
 * the input. */
BP_API int32_t bp_group_allocate(bp_group* group, uint64_t bytes, uint32_t memory, int32_t device, bp_memory** result,
                                 bp_error* err);
/* Registers memory of the program for operations of this group, as ncclCommRegister does. The program keeps it valid
 * until the result is released. If the backend registers nothing, or not this memory, the call succeeds and the memory
 * is used as ordinary memory (bp_memory_native returns 0). */
BP_API int32_t bp_group_register(bp_group* group, void* data, uint64_t bytes, uint32_t memory, int32_t device,
                                 bp_memory** result, bp_error* err);
/* The address, aligned to 64 bytes or better; NULL for 0 bytes. Valid until released, also after the group has ended.
 */
BP_API void* bp_memory_data(const bp_memory* memory);
/* 1 if the memory is the backend's, 0 if it is ordinary memory. */
BP_API int32_t bp_memory_native(const bp_memory* memory);
/* No operation may be using it. Allowed before and after the group has ended. */
BP_API void bp_memory_release(bp_memory* memory);

/* ---- Objects: byte strings of any length, which may differ between ranks -------------------------------------------
 */

typedef struct bp_objects bp_objects; /* received objects, in rank order */

/* kind BP_BROADCAST: `in` at the root, one object out everywhere. BP_GATHER: `in` everywhere, W objects out at the
 * root, none elsewhere. BP_ALL_GATHER: W objects out everywhere. BP_SCATTER: W objects in at the root (in_count W), one
 * out everywhere. Blocks. Other kinds are BP_INVALID. The objects of one rank may hold up to 2^40 bytes together. */
BP_API int32_t bp_group_exchange_objects(bp_group* group, uint32_t kind, int32_t root, const void* const* in,
                                         const uint64_t* in_sizes, uint64_t in_count, int64_t timeout_ns,
                                         bp_objects** out, bp_error* err);
/* Sends an object as a message. Tags of objects are separate from those of bp_op. bp_group_recv_object returns one
 * object, and its sender in *source (may be NULL); `peer` may be BP_ANY_SOURCE. Both block up to timeout_ns. */
BP_API int32_t bp_group_send_object(bp_group* group, const void* object, uint64_t size, int32_t peer, uint32_t tag,
                                    int64_t timeout_ns, bp_error* err);
BP_API int32_t bp_group_recv_object(bp_group* group, int32_t peer, uint32_t tag, int64_t timeout_ns, bp_objects** out,
                                    int32_t* source, bp_error* err);
BP_API uint64_t bp_objects_count(const bp_objects* objects);
/* The bytes of object i; valid until released. */
BP_API const void* bp_objects_get(const bp_objects* objects, uint64_t i, uint64_t* size);
BP_API void bp_objects_release(bp_objects* objects);

/* ---- Diagnostics --------------------------------------------------------------------------------------------------
 */

/* The flight recorder of a group: its last operations, oldest first, as JSON to be freed with bp_free. */
BP_API int32_t bp_group_trace(bp_group* group, char** json, bp_error* err);
/* The flight recorders of all ranks of a running job, requested through its store; the caller need not be a rank:
 * {"world_size": W, "silent": [ranks that did not answer], "traces": [as bp_group_trace, per rank and group]}. `group`:
 * name of the job's first group, NULL for "world". Blocks up to timeout_ns; BP_TIMEOUT if no such group uses this
 * store.
 */
BP_API int32_t bp_store_trace(bp_store* store, const char* group, int64_t timeout_ns, char** json, bp_error* err);

/* Sets the receiver of log lines of the library and its plugins; NULL: stderr, from the level that BACKPLANE_LOG names
 * (debug, info, warn, error, off; warn by default). `log` may be called from any thread. */
BP_API void bp_set_log(void (*log)(void* ctx, uint32_t level, const char* text), void* ctx);

#ifdef __cplusplus
}
#endif

#endif
