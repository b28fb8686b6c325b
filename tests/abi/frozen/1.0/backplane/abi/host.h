/* SPDX-License-Identifier: Apache-2.0
 *
 * What the core offers to a plugin. A host table is handed to `probe` and `init`. The one of probe is valid during the
 * call and has no store (its store functions answer BP_UNSUPPORTED). The one of init is valid until the agent's destroy
 * has returned, and legal to use from its first moment. What probe logs at BP_LOG_INFO is shown beside its answer.
 */
#ifndef BACKPLANE_ABI_HOST_H
#define BACKPLANE_ABI_HOST_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BP_LOG_DEBUG = 0, BP_LOG_INFO = 1, BP_LOG_WARN = 2, BP_LOG_ERROR = 3 };

typedef struct bp_host {
  uint32_t struct_size;
  uint32_t abi_minor; /* what the core implements */
  void* ctx;          /* first argument of every function below; owned by the core */

  /* Logs one line of ready text (no newline needed; copied). [any], does not block for long. */
  void (*log)(void* ctx, uint32_t level, const char* text);

  /* 1 once this agent's group is being aborted or destroyed, else 0. For loops that abort cannot reach, above all those
   * of init: they ask at least every 100 ms and give up with BP_CANCELLED. Operations end through abort, which the core
   * calls as well. [any], does not block. */
  int32_t (*abort_requested)(void* ctx);

  /* The key-value store that all ranks of this group share. Keys are C strings up to 1024 bytes in a space of this
   * agent's own; values are bytes up to 64 MiB. All are [any] and block: on the network (a
   * store that is lost is noticed within 60 s), and, where there is a timeout, until the deadline (BP_TIMEOUT) or abort
   * (BP_CANCELLED; from then on, also during destroy, every call ends so). Not to be called from submit without
   * BP_OP_SYNC. */

  /* Sets a value, replacing an earlier one. The bytes are copied. */
  int32_t (*store_set)(void* ctx, const char* key, const void* value, uint64_t size, bp_error* err);

  /* Waits until `key` exists and copies its value into the caller's buffer. *size is the value's size; if that exceeds
   * `capacity` nothing is copied and the answer is BP_RESOURCE: call again with a larger buffer. */
  int32_t (*store_get)(void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size, int64_t timeout_ns,
                       bp_error* err);

  /* Adds `delta` to a counter (a missing one counts as 0) and reports the sum. A counter's value is its decimal text.
   */
  int32_t (*store_add)(void* ctx, const char* key, int64_t delta, int64_t* sum, bp_error* err);

  /* Waits until all `count` keys exist. */
  int32_t (*store_wait)(void* ctx, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err);

  /* Sets `key` to the desired value if its current value equals the expected one; an expected size of 0 also matches a
   * missing key. Then copies the value that now stands there into the caller's buffer, like store_get. */
  int32_t (*store_compare_set)(void* ctx, const char* key, const void* expected, uint64_t expected_size,
                               const void* desired, uint64_t desired_size, void* buffer, uint64_t capacity,
                               uint64_t* size, bp_error* err);

  /* Removes a key. *existed (may be NULL) says whether there was one. */
  int32_t (*store_delete)(void* ctx, const char* key, int32_t* existed, bp_error* err);

  /* An optional service of the core by id ("backplane.reduce/1", ext/reduce.h), or NULL. Valid as long as the host
   * table. [any], does not block. */
  const void* (*extension)(void* ctx, const char* id);

  /* Reports that the agent's group has failed although no operation of it need be in flight: a link or a device is
   * gone, a peer's process has died. The core aborts the group with this error (it comes back through abort, on another
   * thread), so that every rank that learns of it stops at once. A peer that destroyed its group in peace is no
   * failure. Only the first report counts. `why` is valid during the call. [any], from init to the return of destroy;
   * does not block. */
  void (*report_failure)(void* ctx, const bp_error* why);
} bp_host;

#ifdef __cplusplus
}
#endif

#endif
