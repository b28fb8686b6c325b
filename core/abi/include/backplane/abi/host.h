/* SPDX-License-Identifier: Apache-2.0
 *
 * The services that the core offers to a plugin. `probe` and `init` receive a host table. The table of probe is valid
 * during the call and has no store: its store functions return BP_UNSUPPORTED. The table of init is usable from the
 * start of init until the agent's destroy has returned. `backplane list --probe` shows the lines that probe logs at
 * BP_LOG_INFO beside its result.
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
  uint32_t abi_minor; /* the minor version that the core implements */
  void* ctx;          /* first argument of every function below; owned by the core */

  /* Logs one line of text (without newline; copied). [any], does not block for long. */
  void (*log)(void* ctx, uint32_t level, const char* text);

  /* Returns 1 once this agent's group is being aborted or destroyed, else 0. For loops that abort cannot interrupt,
   * above all those of init: they call it at least every 100 ms and give up with BP_CANCELLED. Operations end through
   * abort, which the core also calls. [any], does not block. */
  int32_t (*abort_requested)(void* ctx);

  /* The key-value store shared by all ranks of this group. Keys are C strings up to 1024 bytes in a namespace of this
   * agent; values are bytes up to 64 MiB. All store functions are [any] and block: on the network (a lost store is
   * noticed within 60 s), and, if they have a timeout, until the deadline (BP_TIMEOUT) or abort (BP_CANCELLED; every
   * call after abort, also during destroy, ends so). Must not be called from submit without BP_OP_SYNC. */

  /* Sets a value and replaces an earlier one. The bytes are copied. */
  int32_t (*store_set)(void* ctx, const char* key, const void* value, uint64_t size, bp_error* err);

  /* Waits until `key` exists and copies its value into the caller's buffer. *size is the size of the value. If it
   * exceeds `capacity`, nothing is copied and the call returns BP_RESOURCE: call again with a larger buffer. */
  int32_t (*store_get)(void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size, int64_t timeout_ns,
                       bp_error* err);

  /* Adds `delta` to a counter (a missing key counts as 0) and sets *sum. A counter is stored as decimal text. */
  int32_t (*store_add)(void* ctx, const char* key, int64_t delta, int64_t* sum, bp_error* err);

  /* Waits until all `count` keys exist. */
  int32_t (*store_wait)(void* ctx, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err);

  /* Sets `key` to the desired value if its current value equals the expected one; an expected size of 0 also matches a
   * missing key. Then copies the current value into the caller's buffer, like store_get. */
  int32_t (*store_compare_set)(void* ctx, const char* key, const void* expected, uint64_t expected_size,
                               const void* desired, uint64_t desired_size, void* buffer, uint64_t capacity,
                               uint64_t* size, bp_error* err);

  /* Deletes a key. *existed (may be NULL) is 1 if the key existed, else 0. */
  int32_t (*store_delete)(void* ctx, const char* key, int32_t* existed, bp_error* err);

  /* Returns an optional service of the core by id ("backplane.reduce/1", ext/reduce.h), or NULL. Valid as long as the
   * host table. [any], does not block. */
  const void* (*extension)(void* ctx, const char* id);

  /* Reports that the agent's group has failed outside any operation: a link or device was lost, or a peer's process
   * died. The core aborts the group with this error (through abort, on another thread), so that every rank that learns
   * of it stops at once. A peer that destroyed its group normally is not a failure. Only the first report counts. `why`
   * is valid during the call. [any], from init until destroy returns; does not block. */
  void (*report_failure)(void* ctx, const bp_error* why);
} bp_host;

#ifdef __cplusplus
}
#endif

#endif
