/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.notify/1", an extension of a process group: a callback when an operation has ended, so that many
 * operations can be awaited without a thread for each. The core tests the works of a backend without this extension
 * from time to time.
 *
 * LAYERS. A layer that offers a table of its own takes its own works and asks the wrapped group with theirs
 * (ext/device.h, LAYERS).
 */
#ifndef BACKPLANE_ABI_EXT_NOTIFY_H
#define BACKPLANE_ABI_EXT_NOTIFY_H

#include "../process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_NOTIFY "backplane.notify/1"

typedef struct bp_notify_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx; /* first argument of the function; owned by the backend */

  /* Has `ended(to)` called once when `work` is terminal: by any thread, before this function returns if the work is
   * terminal already, and at the latest before work_release returns. work_test says how it ended. `ended` does not
   * block, throws nothing and calls nothing of the backend, so that it may be called under a lock. The operation must
   * get on without calls (as with BP_BACKEND_AUTONOMOUS) from now on. BP_UNSUPPORTED: this work has no such notice;
   * `ended` is not called then. At most once per work. [any], not beside work_release; does not block. */
  int32_t (*on_end)(void* ctx, bp_work* work, void (*ended)(void* to), void* to, bp_error* err);
} bp_notify_api;

#ifdef __cplusplus
}
#endif

#endif
