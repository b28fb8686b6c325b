/* SPDX-License-Identifier: Apache-2.0
 *
 * A process group: the table of functions behind which a transport is implemented.
 *
 * LIFE OF AN OPERATION. submit starts it. It ends in exactly one terminal state: done (BP_OK) or failed (any status but
 * BP_AGAIN). Either submit reports the terminal state (it returns an error, or BP_OK with *work left NULL), or it
 * returns BP_OK with a work. work_test and work_wait then report the state, with the same result each time, until
 * work_release. The buffers are busy until the terminal state. work_cancel only requests that it come sooner.
 *
 * DONE. A send is done when its buffer may be reused. The message reaches its receiver even if this rank destroys the
 * group at once, provided that the process lives until destroy has returned, and also if the recv is submitted after
 * that. A recv or a collective is done when its output is complete on this rank. A send that timed out or was cancelled
 * may still be received.
 *
 * FAILURE. After the failure of one send or recv (BP_TIMEOUT, BP_CANCELLED, BP_INVALID) the group stays usable if the
 * backend can ensure it. After a failed collective the group can only be aborted and destroyed. A backend that can
 * detect a lost peer reports it (BP_PEER_LOST, naming it); messages that arrived from it earlier can still be received.
 * A peer that destroyed its group counts as lost for ranks that still wait for it. A recv from BP_ANY_SOURCE fails only
 * when no peer is left.
 *
 * PROGRESS. An operation must progress while the caller waits for, or repeatedly tests, any operation of the same
 * group. A backend whose operations progress without any call (by a thread or device of its own) declares
 * BP_BACKEND_AUTONOMOUS.
 *
 * ABORT. Within half a second of abort, without further calls and without waiting for any peer, every operation in
 * flight is terminal and every blocked call has returned; submit fails from then on. Status and native code are those
 * of `why`, and so is the peer rank if `why` names one. The text contains the text of `why`, or at least its first 500
 * bytes. If several aborts come at once, one of them counts for all operations. Operations that were done stay done.
 * Abort is the only way out of a hang, so it must not take a lock that a blocked call holds while it blocks. It affects
 * this rank; peers may notice (closed connections). Other groups of the process, existing or future, are unaffected.
 *
 * DESTROY. The core calls destroy after it has released every work. It does not synchronise the ranks first, so peers
 * may still be busy. Messages that were not received are dropped. When destroy returns, all threads of the agent are
 * joined and all its descriptors closed.
 */
#ifndef BACKPLANE_ABI_PROCESS_GROUP_H
#define BACKPLANE_ABI_PROCESS_GROUP_H

#include "op.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An operation in flight. Made by submit, owned by the core until work_release, opaque to it. */
typedef struct bp_work bp_work;

/* `self` is bp_agent.self. All functions are mandatory. */
typedef struct bp_process_group_api {
  uint32_t struct_size;
  uint32_t reserved;

  /* Starts an operation whose kind, dtype, reduce op and memory are declared in the backend's capabilities. *work is
   * NULL on entry. [any]; blocks only if BP_OP_SYNC is set, and then no longer than op->timeout_ns or until abort.
   * Errors: any; BP_AGAIN is not allowed. */
  int32_t (*submit)(void* self, const bp_op* op, bp_work** work, bp_error* err);

  /* BP_OK: done. BP_AGAIN: in flight. Any other status: failed. [one-at-a-time] per work, does not block. */
  int32_t (*work_test)(void* self, bp_work* work, bp_error* err);

  /* Like work_test, but waits up to timeout_ns for the terminal state. BP_AGAIN after that time: the operation is still
   * in flight. [one-at-a-time] per work and never beside work_test of the same work; blocks. */
  int32_t (*work_wait)(void* self, bp_work* work, int64_t timeout_ns, bp_error* err);

  /* Requests that the work end soon, with BP_CANCELLED if it has not ended already. May do nothing if the operation
   * cannot be stopped by itself. [any], also beside work_wait of the same work, but not beside work_release; does not
   * block. */
  void (*work_cancel)(void* self, bp_work* work);

  /* Frees a terminal work. [exclusive] for this work, does not block. */
  void (*work_release)(void* self, bp_work* work);

  /* See ABORT above. `why` is not NULL, its status is neither BP_OK nor BP_AGAIN, and it is valid during the call.
   * Later calls do nothing. [any], also concurrently with a blocked submit or work_wait; does not block for long. */
  void (*abort)(void* self, const bp_error* why);

  /* Ends the group and frees `self`. See DESTROY above. [exclusive]; may block for at most a few seconds. */
  void (*destroy)(void* self);

  /* Returns an optional capability by id (ext/), or NULL. Valid until destroy. [any], does not block. */
  const void* (*extension)(void* self, const char* id);
} bp_process_group_api;

#ifdef __cplusplus
}
#endif

#endif
