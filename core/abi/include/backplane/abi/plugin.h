/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry of a plugin: the descriptors of the .so and of its backends, with the two handlers of the backend registry
 * (options handler and init handler).
 *
 * A minimal plugin in C is a note (note.h), one bp_backend with `init`, one bp_process_group_api, and
 *
 *     const bp_plugin bp_plugin_v1 = {sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "acme", backends, 1, 0};
 *
 * in one translation unit compiled with -fPIC -fvisibility=hidden -pthread and linked with -shared -Wl,-z,now into
 * `backplane_<id>.so`. No other symbol is exported (a linker that adds its own, such as _end, needs a version script).
 */
#ifndef BACKPLANE_ABI_PLUGIN_H
#define BACKPLANE_ABI_PLUGIN_H

#include "host.h"
#include "options.h"
#include "process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of agent that a backend can make; a mask. */
enum {
  BP_KIND_PROCESS_GROUP = 1, /* bp_agent.api is a bp_process_group_api */
  BP_KIND_RPC = 2,           /* an RPC agent ("backplane.rpc/1") */
  BP_KIND_LAYER = 4          /* a process group that wraps another one (bp_init.inner) */
};

/* Properties of a backend; a mask. A layer with BP_BACKEND_TAGS matches messages itself, whatever the wrapped backend
 * supports: its own BP_BACKEND_ANY_SOURCE, BP_BACKEND_ANY_TAG and tag_bits then apply, and all ranks must use it. */
enum {
  BP_BACKEND_TAGS = 1,         /* send and recv match tags */
  BP_BACKEND_ANY_SOURCE = 2,   /* recv accepts BP_ANY_SOURCE */
  BP_BACKEND_AUTONOMOUS = 4,   /* operations progress without calls */
  BP_BACKEND_THREADS = 8,      /* the ranks of a group may be threads of one process */
  BP_BACKEND_LOCAL = 16,       /* init_process_group returns the group and does not change the process-wide default */
  BP_BACKEND_ONE_PROCESS = 32, /* all ranks of a group must be in one process; with BP_BACKEND_THREADS */
  BP_BACKEND_BOUNDED = 64, /* every function keeps its deadline and ends on abort, so the core calls it on the caller's
                              thread. Without this flag the core calls the backend on threads of its own, which costs
                              some microseconds per operation, and detaches a thread that does not return in time */
  BP_BACKEND_AUTHENTICATES = 128,  /* in jobs with a secret, verifies that its peers are ranks of its group
                                      (ext/security.h). Such a job accepts a backend without this flag only if it stays
                                      in one process (BP_BACKEND_ONE_PROCESS) */
  BP_BACKEND_RPC_OVER_GROUP = 256, /* an RPC agent that sends over bp_init.inner (ext/rpc.h) */
  BP_BACKEND_ANY_TAG = 512,        /* recv accepts BP_ANY_TAG */
  BP_BACKEND_BLOCKING_INIT = 1024, /* init cannot be interrupted: it may ignore abort_requested and its timeout. The
                                      core calls it on a thread of its own and detaches that thread. BP_BACKEND_BOUNDED
                                      then applies to the other functions */
  BP_BACKEND_ONE_WORLD = 2048      /* the process belongs to one world of the underlying library. All first groups of
                                      a process have the same rank and world size, and only one exists at a time; every
                                      other group is made from one of them (bp_init.parent, which is NULL if that group
                                      was aborted before shrink) */
};

/* The dtypes, reduce ops and memory kinds for which a backend performs one operation natively: all their combinations.
 * If the supported set is not such a product, several rows describe the operation, and a combination is native if one
 * row contains it. Static. The core implements everything else over send and recv, for which BP_U8 in BP_HOST memory is
 * enough: it also recasts host messages of other dtypes. */
typedef struct bp_capability {
  uint32_t struct_size;
  uint32_t op;         /* BP_BARRIER ... */
  uint64_t dtypes;     /* mask of BP_BIT(BP_F32) ...; 0 for barrier */
  uint64_t reduce_ops; /* mask; 0 for operations that do not reduce */
  uint64_t memory;     /* mask of BP_BIT(BP_HOST) ...; 0 for barrier */
} bp_capability;

/* Validated options of a backend, made by construct_options, owned by the core, opaque to it. They may be destroyed
 * before the agents that init made with them. */
typedef struct bp_options bp_options;

/* The input of construct_options. Valid during the call. */
typedef struct bp_options_request {
  uint32_t struct_size;
  uint32_t value_count;
  const bp_key_value* values; /* one per option of the schema, in its order, checked and normalised */
  int64_t rpc_timeout_ns;     /* default timeout of RPC calls; process groups ignore it */
  const char* init_method;    /* "env://", "tcp://host:port", "file:///path" */
} bp_options_request;

/* The input of init. Valid during the call, except for `host` (see host.h) and `inner`. */
typedef struct bp_init {
  uint32_t struct_size;
  int32_t rank; /* 0 <= rank < world_size */
  int32_t world_size;
  int32_t device;   /* ordinal of the device that this rank computes on; -1: none */
  const char* name; /* the group's name, or the RPC worker's */
  const bp_host* host;
  const bp_options* options;  /* result of construct_options; NULL if the backend has no such function */
  const bp_key_value* values; /* the same options as text: one per option of the schema, in its order */
  uint32_t value_count;
  uint32_t kind;                 /* the kind of agent to make, one of BP_KIND_PROCESS_GROUP ... */
  int64_t timeout_ns;            /* time allowed for init itself */
  const int32_t* global_ranks;   /* world_size elements: each member's rank in the job's first group */
  const struct bp_agent* inner;  /* layers, and agents with BP_BACKEND_RPC_OVER_GROUP: the group to wrap or send over,
                                    valid until their destroy has returned; they do not destroy it. NULL otherwise */
  const struct bp_agent* parent; /* the agent of the same backend in the group that this one is made from; not aborted,
                                    and all of this group's members belong to it. NULL if there is none. All members of
                                    this group are in its init; other members of the parent need not be. Operations of
                                    the parent may be in flight. Valid during the call; NULL for layers */
  const int32_t* parent_ranks;   /* world_size elements: each member's rank in the parent; NULL without a parent */
  const struct bp_backend* inner_backend; /* layers: the wrapped backend, below all layers, with its flags and tag_bits.
                                             Static. NULL otherwise */
} bp_init;

/* The output of init. Filled in by the plugin; the struct belongs to the core. */
typedef struct bp_agent {
  uint32_t struct_size; /* set by the core */
  uint32_t kind;        /* one of BP_KIND_PROCESS_GROUP ... */
  const void* api;      /* the table of that kind; valid until destroy */
  void* self;           /* first argument of the table's functions */
  int32_t rank;         /* as the agent sees it; the core refuses an agent that disagrees with bp_init */
  int32_t world_size;
  const bp_capability* const* capabilities; /* what this agent supports, if less than its descriptor declares (library
                                               too old, device missing); NULL: everything that is declared */
  uint32_t capability_count;
  uint32_t reserved;
} bp_agent;

/* A backend. Static. */
typedef struct bp_backend {
  uint32_t struct_size;
  uint32_t kinds; /* mask of BP_KIND_... */
  uint32_t flags; /* mask of BP_BACKEND_... */
  uint32_t option_count;
  const char* id;      /* [a-z0-9_-]{1,32}: the name that users write */
  const char* version; /* of the backend, at most 23 bytes */
  const char* summary; /* one line for `backplane list` */
  const bp_option* const* options;
  const bp_capability* const* capabilities;
  uint32_t capability_count;
  uint32_t tag_bits; /* with BP_BACKEND_TAGS: bits of a tag that are matched, 16 to 64 (op.h, TAGS); 0 stands for 64 */

  /* Returns BP_OK if the backend is viable on this machine, or BP_UNSUPPORTED with the exact reason ("libnccl.so.2 not
   * found"). Leaves nothing behind: no communication, no files, no threads. NULL: always viable. [any], may block
   * briefly. */
  int32_t (*probe)(const struct bp_backend* self, const bp_host* host, bp_error* err);

  /* The options handler. Converts checked values into an object of the backend, and refuses combinations that the
   * schema cannot express (BP_INVALID). NULL if the text values are enough; destroy_options is then NULL as well.
   * [any], does not block. */
  int32_t (*construct_options)(const struct bp_backend* self, const bp_options_request* request, bp_options** options,
                               bp_error* err);
  void (*destroy_options)(const struct bp_backend* self, bp_options* options);

  /* The init handler. Starts this rank's part of a group of init->world_size ranks and fills in *agent. Need not wait
   * for the other ranks. If it waits for a rank that does not come, its text or peer_rank names that rank (BP_TIMEOUT,
   * BP_PEER_LOST). BP_INVALID: rank or world_size out of range. BP_RESOURCE: descriptors, threads or memory exhausted.
   * On failure it frees everything, and *agent is ignored. Called once per group, possibly several times in a process
   * and concurrently. [any]; blocks up to init->timeout_ns or until host->abort_requested. */
  int32_t (*init)(const struct bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err);

  /* Finalizes the underlying library when the process ends, as MPI_Finalize does. The core calls it at most once, from
   * its exit handler, if an init succeeded in this process, after every agent is destroyed. No function of the backend
   * is called afterwards. Not called after _exit, after a fatal signal, or in a child of fork. NULL: nothing to do.
   * [exclusive]; may block for at most a few seconds. */
  void (*finalize)(const struct bp_backend* self);
} bp_backend;

/* A plugin. Static. `need_minor` is for a plugin that requires a newer field or function of these headers; other
 * plugins use BP_HAS. A plugin that requires an extension of the core names it in its note. */
typedef struct bp_plugin {
  uint32_t struct_size;
  uint32_t magic;       /* BP_MAGIC */
  uint32_t built_minor; /* BP_ABI_MINOR of the headers it was built with */
  uint32_t need_minor;  /* the lowest core minor that the plugin works with */
  const char* vendor;   /* for `backplane info` */
  const bp_backend* const* backends;
  uint32_t backend_count; /* at least 1 */
  uint32_t reserved;
} bp_plugin;

#define BP_PLUGIN_SYMBOL "bp_plugin_v1" /* must agree with BP_ABI_MAJOR */

BP_EXPORT extern const bp_plugin bp_plugin_v1; /* defined by the plugin only */

#ifdef __cplusplus
}
#endif

#endif
