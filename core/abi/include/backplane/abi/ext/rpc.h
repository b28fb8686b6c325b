/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.rpc/1": RPC agents. An agent carries messages between the workers of a job. The core implements calls,
 * timeouts, handler threads and references, the same over every agent.
 *
 * A backend that makes agents has BP_KIND_RPC among its kinds. Its init is called with bp_init.kind set to that kind,
 * and fills in bp_agent with kind BP_KIND_RPC and a bp_rpc_api. Workers are numbered like the ranks of a group. The
 * agent delivers messages through the table that its host offers as extension BP_EXT_RPC, from the beginning of init: a
 * worker that has started may send to one that has not yet returned from init.
 *
 * INNER. A backend with BP_BACKEND_RPC_OVER_GROUP receives a process group of the same ranks to send over, as
 * bp_init.inner. The group is made for this agent alone and is valid until the agent's destroy has returned. Only the
 * agent aborts it.
 *
 * MESSAGES have a payload, usually small, and out-of-band buffers of any size. A message arrives completely or not at
 * all, and at most once. Its bytes are arbitrary: an agent interprets nothing. Messages are unordered, with one
 * exception: a message with id 0, which may be a goodbye, is delivered after the messages sent to the same worker
 * before it, provided that those arrive within one or two seconds; its sender releases it once it has arrived. The
 * receiver of a message struct reads no more of it than struct_size covers; missing fields are zero. Buffers may be in
 * device memory only if both agents agreed on it; the receiving agent chooses where a buffer arrives. The agent reads a
 * device buffer after the work that the program has enqueued on the device's default stream; it does not wait for other
 * streams. Received buffers are complete when the message is delivered.
 *
 * OWNERSHIP. The side that takes over a message calls `release(owner)` once, when it no longer needs payload and
 * buffers: the agent for messages it sends, the core for messages it receives. Until then they stay valid. The agent
 * does not modify messages it sends; the core may write to those it received. Received buffers are aligned to 16 bytes
 * if possible; the core copies those that are not aligned enough.
 *
 * CONNECTIONS. The agent replaces a broken connection: it reports the messages that may not have arrived (`failed`) and
 * connects again for the next ones, as long as the peer lives. A connection that it cannot replace it reports as
 * `lost`.
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

/* A message. The struct and the array are valid during the call that passes it; the memory they point to until release.
 */
typedef struct bp_rpc_message {
  uint32_t struct_size;
  uint32_t buffer_count;
  uint64_t id; /* assigned by the sender, for `failed`; 0: not tracked. Not transmitted */
  const void* payload;
  uint64_t payload_size;        /* bytes */
  const bp_buffer* buffers;     /* buffer_count (NULL if that is 0); their counts are bytes */
  void (*release)(void* owner); /* [any]; NULL: nothing to release. May run destructors of the program: call it without
                                   holding locks */
  void* owner;
} bp_rpc_message;

/* An agent. `self` is bp_agent.self. All functions are mandatory. */
typedef struct bp_rpc_api {
  uint32_t struct_size;
  uint32_t reserved;

  /* Takes over a message, also if it fails, and sends it to worker `to` (never this worker). BP_OK: the message is in
   * flight. If it does not arrive, or may not have arrived, `failed` reports it, possibly before this returns. The
   * agent may give up after timeout_ns (negative, BP_NO_TIMEOUT: never). An error: nothing was sent. [any], also from
   * within `received` and `failed`, and beside abort; does not block. */
  int32_t (*send)(void* self, int32_t to, const bp_rpc_message* message, int64_t timeout_ns, bp_error* err);

  /* Ends everything in flight. Within half a second, without waiting for any peer, every message that was taken over is
   * released; nothing is delivered afterwards. send fails from then on. Later calls do nothing. [any], not from within
   * `received`; may block for half a second. */
  void (*abort)(void* self, const bp_error* why);

  /* Frees `self`, after abort. Messages that the core holds stay valid. [exclusive] */
  void (*destroy)(void* self);

  /* An optional capability by id, or NULL. Valid until destroy. [any], does not block. */
  const void* (*extension)(void* self, const char* id);
} bp_rpc_api;

/* The table that the host of an agent offers as BP_EXT_RPC. Valid as long as the host. */
typedef struct bp_rpc_host {
  uint32_t struct_size;
  uint32_t inner_flags; /* BP_BACKEND_... of the backend of bp_init.inner; 0 if there is none */
  void* ctx;            /* first argument of the functions */

  /* Delivers a message, which the core takes over. Does not block for long; may call send. [any], several at a time. */
  void (*received)(void* ctx, int32_t from, const bp_rpc_message* message);

  /* The message with this id will not arrive at `to`, or may not have arrived. Called at most once for each message
   * that send took over, and not if send itself failed. [any]; does not block for long. */
  void (*failed)(void* ctx, int32_t to, uint64_t id, const bp_error* err);

  /* The largest message (payload and buffers together, bytes) that the core accepts. The agent refuses larger ones
   * before it allocates memory for them. */
  uint64_t max_message_bytes;

  /* `peer` (-1: every peer) can no longer be reached, as far as the agent can tell: calls to it end. Messages that
   * still arrive from it are accepted. [any]; does not block for long. */
  void (*lost)(void* ctx, int32_t peer, const bp_error* err);

  /* A message has arrived whose buffers cannot be allocated here (for example, device memory is exhausted). The core
   * takes it over without buffers, and ends the call that it belongs to with this error. [any]; does not block for
   * long.
   */
  void (*refused)(void* ctx, int32_t from, const bp_rpc_message* message, const bp_error* err);
} bp_rpc_host;

#ifdef __cplusplus
}
#endif

#endif
