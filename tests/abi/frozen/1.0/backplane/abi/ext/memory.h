/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.memory/1", an extension of a process group: memory that the backend's operations reach without copying it
 * aside first (a part of a segment that all ranks map, pages that a network card or a device knows).
 *
 * WHAT IT CHANGES. Time, nothing else. A buffer may be this memory, a part of it, or any other, on each rank and in
 * each operation as it comes; the results are the same. A backend recognises its memory by the address, so that an
 * operation says nothing about it.
 *
 * LOCAL. Allocating and releasing is each rank's own affair: no rank waits for another, and they need not do the same.
 * What ranks have to know of each other's memory they tell each other in the operations that use it.
 *
 * TERMINAL means what it means for other buffers: nobody else, and no other rank, writes there any more, also if the
 * operation failed. What the output of a collective that failed holds is undefined, also where it was the input.
 *
 * REGISTERED memory is memory that the program has from elsewhere. It stays the program's, which keeps it mapped until
 * it is deregistered.
 */
#ifndef BACKPLANE_ABI_EXT_MEMORY_H
#define BACKPLANE_ABI_EXT_MEMORY_H

#include "../status.h"
#include "../types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_MEMORY "backplane.memory/1"

/* Memory that was handed out. Made by allocate, owned by the caller until release, opaque to it. */
typedef struct bp_allocation bp_allocation;

typedef struct bp_memory_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx; /* first argument of allocate; owned by the backend. A layer may hand on the table of what it wraps */

  /* Memory for `bytes` (at least 1) bytes of this kind (BP_HOST ...) and device. *data is where it begins, aligned to
   * 64 bytes or better; what it holds is undefined. It can be used at once: what the system has to provide is provided.
   * Errors: BP_UNSUPPORTED, there is no such memory here (the core then takes ordinary host memory, if that was
   * wanted); BP_RESOURCE, not so much. [any], until destroy, also after abort; blocks while the system works. */
  int32_t (*allocate)(void* ctx, uint64_t bytes, uint32_t memory, int32_t device, bp_allocation** allocation,
                      void** data, bp_error* err);

  /* Gives it back. Not before every operation with a buffer in it is terminal. [any]; legal after the group's destroy,
   * too: until then the memory goes on as ordinary memory of the process. Does not block for long. */
  void (*release)(bp_allocation* allocation);

  /* Prepares `bytes` (at least 1) bytes at `data` for operations, as ncclCommRegister or ibv_reg_mr do. May be NULL:
   * the backend registers nothing. *allocation is for `release`, which deregisters; operations work before and after.
   * Memory may be registered in parts, and parts may overlap. Errors: BP_UNSUPPORTED, this memory cannot be registered;
   * BP_RESOURCE, the limit of locked memory or of registrations is reached. The core then goes on without. [any], until
   * destroy; blocks while the system works. */
  int32_t (*register_memory)(void* ctx, void* data, uint64_t bytes, uint32_t memory, int32_t device,
                             bp_allocation** allocation, bp_error* err);
} bp_memory_api;

#ifdef __cplusplus
}
#endif

#endif
