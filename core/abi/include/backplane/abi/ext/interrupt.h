/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.interrupt/1", an extension of a process group: operations that block inside submit (BP_OP_SYNC) can be
 * interrupted by the program, for example by Ctrl-C in Python. While a program has an interruption hook
 * (bp_set_interrupt_hook), the core submits operations without BP_OP_SYNC to backends that lack this extension, and
 * waits in slices.
 */
#ifndef BACKPLANE_ABI_EXT_INTERRUPT_H
#define BACKPLANE_ABI_EXT_INTERRUPT_H

#include "../process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_INTERRUPT "backplane.interrupt/1"

typedef struct bp_interrupt_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx; /* first argument of the function; owned by the backend */

  /* Gives the backend a function to ask. From then on a submit that blocks calls interrupted(to) on its own thread at
   * least every 100 ms. If that returns 1, the operation ends with BP_CANCELLED, as soon as after work_cancel, unless
   * it has ended meanwhile. Its buffers are free when submit returns; the text begins with "interrupted by the
   * program". If it returns 0, the operation goes on. `interrupted` runs handlers of the program: it may take long, and
   * may call functions of this group but destroy, so the backend holds no lock that these need. Inside a collective, a
   * backend that performs one at a time may refuse another one with BP_INVALID. `interrupted` does not throw. Called
   * once, before the first operation; `interrupted` is valid until destroy. [exclusive], does not block. */
  void (*ask)(void* ctx, int32_t (*interrupted)(void* to), void* to);
} bp_interrupt_api;

#ifdef __cplusplus
}
#endif

#endif
