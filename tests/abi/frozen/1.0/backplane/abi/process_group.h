/* SPDX-License-Identifier: Apache-2.0
 *
 * A process group: the small table behind which a transport lives.
 *
 * THE LIFE OF AN OPERATION. submit hands it in. It ends in exactly one terminal state: done (BP_OK) or failed (any
 * status but BP_AGAIN). Either submit itself says so (it returned an error, or BP_OK with *work left NULL), or it
 * returned BP_OK with a work, and then work_test or work_wait says so, again and again with the same answer until
 * work_release. The buffers are busy until the terminal state. work_cancel only asks for it to come sooner.
 *
 * DONE. A send is done when its buffer may be used again; the message reaches its receiver even if this rank destroys
 * the group at once (destroy sees to it), as long as the process lives until destroy has returned. A recv or a
 * collective is done when its output is complete on this rank. A send that timed out or was cancelled may still be
 * received.
 *
 * FAILURE of one send or recv (BP_TIMEOUT, BP_CANCELLED, BP_INVALID) leaves the group usable where the backend can; a
 * collective that failed leaves it fit only for abort and destroy. A backend reports a lost peer (BP_PEER_LOST, naming
 * it) where it can see one; what has arrived from it before is still received. A peer that destroyed its group counts
 * as lost for those who still wait for it. A recv from BP_ANY_SOURCE fails only when nobody is left.
 *
 * PROGRESS. An operation must get on while the caller waits for, or tests again and again, any operation of the same
 * group. A backend that gets on without any call at all (a thread or a device of its own) says so with
 * BP_BACKEND_AUTONOMOUS.
 *
 * ABORT. Within half a second of abort, without further calls and without waiting for any peer, every operation in
 * flight is terminal and every blocked call has returned; submit fails from then on. The status and the native code are
 * those of `why`, so is the peer rank if `why` names one, and the text tells its text; of a long one, at least the
 * first 500 bytes. What was done before stays done. Abort is the only way out of a hang, so it must not need a lock
 * that a blocked call keeps while it blocks. It concerns this rank; peers may notice (closed connections). Other groups
 * of the process, and those made later, are as before.
 *
 * THE END. The core calls destroy after it released every work; it puts no barrier before it, so peers may still be
 * busy. Messages that nobody received are dropped. Nothing of the agent runs afterwards: threads are joined,
 * descriptors closed.
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

  /* BP_OK: done. BP_AGAIN: still in flight. Anything else: failed. [one-at-a-time] per work, does not block. */
  int32_t (*work_test)(void* self, bp_work* work, bp_error* err);

  /* Like work_test, but waits up to timeout_ns for the terminal state. BP_AGAIN when that time is over: the operation
   * goes on. [one-at-a-time] per work and never beside work_test of the same work; blocks. */
  int32_t (*work_wait)(void* self, bp_work* work, int64_t timeout_ns, bp_error* err);

  /* Asks that the work end soon, with BP_CANCELLED if it has not ended already. May do nothing if the operation cannot
   * be stopped alone. [any], also beside work_wait of the same work, but not beside work_release; does not block. */
  void (*work_cancel)(void* self, bp_work* work);

  /* Frees a work that is terminal. [exclusive] for this work, does not block. */
  void (*work_release)(void* self, bp_work* work);

  /* See ABORT above. `why` is not NULL, neither BP_OK nor BP_AGAIN, and valid during the call. Later calls do nothing.
   * [any], also concurrently with a blocked submit or work_wait; does not block for long. */
  void (*abort)(void* self, const bp_error* why);

  /* Ends the group and frees `self`. [exclusive]; may block for as long as closing takes, at most a few seconds. */
  void (*destroy)(void* self);

  /* An optional capability by id (ext/), or NULL. The table is valid until destroy. [any], does not block. */
  const void* (*extension)(void* self, const char* id);
} bp_process_group_api;

#ifdef __cplusplus
}
#endif

#endif
