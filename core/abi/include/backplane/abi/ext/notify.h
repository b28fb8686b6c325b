/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.notify/1", an extension of a process group: a callback when an operation has ended, so that a program can
 * await many operations without a thread for each. For backends without this extension the core polls work_test.
 *
 * LAYERS. A layer that offers its own table accepts its own works and passes the wrapped group's works to the wrapped
 * group's table (see LAYERS in ext/device.h).
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

  /* Calls `ended(to)` once when `work` is terminal: from any thread, before this function returns if the work is
   * terminal already, and before work_release returns at the latest. work_test reports how the work ended. `ended` does
   * not block, does not throw, and calls nothing of the backend, so the backend may call it with its locks held. From
   * this call on the operation must progress without calls, as with BP_BACKEND_AUTONOMOUS. BP_UNSUPPORTED: not
   * available for this work; `ended` is then not called. At most once per work. [any], not beside work_release; does
   * not block. */
  int32_t (*on_end)(void* ctx, bp_work* work, void (*ended)(void* to), void* to, bp_error* err);
} bp_notify_api;

#ifdef __cplusplus
}
#endif

#endif
