/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.rpc/1": RPC agents. An agent carries messages between the workers of a job, and nothing else: calls,
 * timeouts, threads for handlers and references are the core's affair, the same over every agent.
 *
 * A backend that makes agents has BP_KIND_RPC among its kinds. Its init is asked for that kind (bp_init.kind) and fills
 * in bp_agent with kind BP_KIND_RPC and a bp_rpc_api. Workers are numbered like the ranks of a group. The agent
 * delivers through the table that its host offers as extension BP_EXT_RPC, from the moment init begins: a worker that
 * has started may send to one that has not yet returned from init.
 *
 * INNER. A backend with BP_BACKEND_RPC_OVER_GROUP gets a process group of the same ranks to send over, as
 * bp_init.inner, made for this agent alone and valid until its destroy has returned. It is aborted only by the agent.
 *
 * MESSAGES have a payload, which is small as a rule, and buffers out of band, which need not be. They arrive whole or
 * not at all, each at most once, and with any bytes: an agent interprets nothing. They come in any order, but one whose
 * id is 0 is delivered after what was sent to the same worker before it, as far as that comes within a second or two,
 * and its sender releases it once it has arrived: it may be a goodbye. Whoever is given a message looks at no more of
 * it than struct_size says; what is missing is zero. Buffers may be of device memory only where both agents agreed on
 * that; where a buffer arrives is the receiving agent's choice. What the program has given to a device's default stream
 * is done before the agent reads a buffer there; of other streams it knows nothing. Received buffers are there when the
 * message is delivered.
 *
 * OWNERSHIP. Whoever takes a message over calls `release(owner)` once, when it needs payload and buffers no more: the
 * agent those it sends, the core those it is given. Until then they stay valid: what is sent as it is; what was
 * received belongs to the core, which may write to it. Buffers that were received are aligned to 16 bytes if possible;
 * the core copies what is not aligned enough for its use.
 *
 * CONNECTIONS that break are the agent's to replace: it reports the messages of which it does not know that they
 * arrived (`failed`) and connects anew for the next ones, for as long as the peer lives. What it cannot replace it
 * reports as `lost`.
 */
#ifndef BACKPLANE_ABI_EXT_RPC_H
#define BACKPLANE_ABI_EXT_RPC_H

#include <stddef.h>

#include "../op.h"
#include "../status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_RPC "backplane.rpc/1"

/* A message. The struct and the array are valid during the call that hands it over; what they point to until release.
 */
typedef struct bp_rpc_message {
  uint32_t struct_size;
  uint32_t buffer_count;
  uint64_t id; /* the sender's, for `failed`; 0: nobody asks. Not sent */
  const void* payload;
  uint64_t payload_size;        /* bytes */
  const bp_buffer* buffers;     /* buffer_count (NULL if that is 0); their counts are bytes */
  void (*release)(void* owner); /* [any]; NULL: nothing is to be done. It may run destructors of the program's: call it
                                   without locks */
  void* owner;
} bp_rpc_message;

/* An agent. `self` is bp_agent.self. All functions are mandatory. */
typedef struct bp_rpc_api {
  uint32_t struct_size;
  uint32_t reserved;

  /* Takes a message over, also if it fails, and sends it to worker `to` (never the worker itself). BP_OK: it is on its
   * way. If it does not arrive, or may not have, `failed` says so, perhaps before this returns; the agent may give up
   * after timeout_ns (negative, BP_NO_TIMEOUT: never). An error: nothing of it has been sent. [any], also from within
   * `received` and `failed`, and beside abort; does not block. */
  int32_t (*send)(void* self, int32_t to, const bp_rpc_message* message, int64_t timeout_ns, bp_error* err);

  /* Ends all that is in flight. Within half a second, without waiting for any peer, every message that was taken over
   * is released; nothing is delivered afterwards. send fails from then on. Later calls do nothing. [any], not from
   * within `received`; may block for that long. */
  void (*abort)(void* self, const bp_error* why);

  /* Ends the agent, after abort, and frees `self`. Messages that the core holds stay valid. [exclusive] */
  void (*destroy)(void* self);

  /* An optional capability by id, or NULL. Valid until destroy. [any], does not block. */
  const void* (*extension)(void* self, const char* id);
} bp_rpc_api;

/* What the host of an agent offers as BP_EXT_RPC. Valid as long as the host. */
typedef struct bp_rpc_host {
  uint32_t struct_size;
  uint32_t inner_flags; /* BP_BACKEND_... of the backend of bp_init.inner; 0 if there is none */
  void* ctx;            /* first argument of the functions */

  /* A message has come: the core takes it over. Does not block for long, may call send. [any], also several at a time
   */
  void (*received)(void* ctx, int32_t from, const bp_rpc_message* message);

  /* The message with this id will not arrive at `to`, or may not have. At most once for each that send took over, and
   * not if send itself failed. [any]; does not block for long. */
  void (*failed)(void* ctx, int32_t to, uint64_t id, const bp_error* err);

  /* The largest message (payload and buffers together, bytes) that the core takes: refuse what says to be larger before
   * allocating for it. */
  uint64_t max_message_bytes;

  /* Nothing is heard from `peer` any more (-1: from anybody), as far as the agent can tell: calls to it end. What comes
   * from it later all the same is received. [any]; does not block for long. */
  void (*lost)(void* ctx, int32_t peer, const bp_error* err);

  /* A message has come whose buffers this worker has no memory for, of a device, say. The core takes it over without
   * them, and has the call that it belongs to end with this error, as if the message had brought that. [any];
   * does not block for long. */
  void (*refused)(void* ctx, int32_t from, const bp_rpc_message* message, const bp_error* err);
} bp_rpc_host;

#ifdef __cplusplus
}
#endif

#endif
