/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.memory/1", an extension of a process group: memory that the backend's operations access without staging
 * copies (part of a segment that all ranks map, or pages registered with a network card or a device).
 *
 * EFFECT. Only speed. On each rank and in each operation, a buffer may lie in this memory, in part of it, or elsewhere;
 * the results are the same. The backend recognises its memory by address, so an operation carries no flag for it.
 *
 * LOCAL. Each rank allocates and releases independently: no rank waits for another, and ranks need not do the same.
 * Ranks exchange the information about such memory in the operations that use it.
 *
 * TERMINAL has its usual meaning: after it, neither the backend nor any other rank writes to the buffer, also if the
 * operation failed. The output of a failed collective is undefined, also if it was the input.
 *
 * REGISTERED memory belongs to the program, which keeps it mapped until it is deregistered.
 */
#ifndef BACKPLANE_ABI_EXT_MEMORY_H
#define BACKPLANE_ABI_EXT_MEMORY_H

#include "../status.h"
#include "../types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_MEMORY "backplane.memory/1"

/* An allocation. Created by allocate or register_memory, owned by the caller until release, opaque to it. */
typedef struct bp_allocation bp_allocation;

typedef struct bp_memory_api {
  uint32_t struct_size;
  uint32_t reserved;
  void* ctx; /* first argument of allocate; owned by the backend. A layer may return the table of the group it wraps */

  /* Allocates `bytes` (at least 1) bytes of this kind (BP_HOST ...) and device. *data is the address, aligned to 64
   * bytes or better; the contents are undefined. The pages are committed. BP_UNSUPPORTED: the backend has no such
   * memory (the core then allocates ordinary memory if host memory was asked for). BP_RESOURCE: not enough memory.
   * [any], until destroy, also after abort; blocks while the system allocates. */
  int32_t (*allocate)(void* ctx, uint64_t bytes, uint32_t memory, int32_t device, bp_allocation** allocation,
                      void** data, bp_error* err);

  /* Frees an allocation. Every operation with a buffer in it must be terminal. Legal after the group's destroy: until
   * released, the memory stays usable as ordinary memory of the process. [any], does not block for long. */
  void (*release)(bp_allocation* allocation);

  /* Registers `bytes` (at least 1) bytes at `data` for operations, as ncclCommRegister or ibv_reg_mr do. May be NULL:
   * the backend registers nothing. `release` of *allocation deregisters; operations on the memory work before and
   * after. Memory may be registered in parts, and parts may overlap. BP_UNSUPPORTED: this memory cannot be registered.
   * BP_RESOURCE: the limit of locked memory or of registrations is reached. The core then continues without. [any],
   * until destroy; blocks while the system registers. */
  int32_t (*register_memory)(void* ctx, void* data, uint64_t bytes, uint32_t memory, int32_t device,
                             bp_allocation** allocation, bp_error* err);
} bp_memory_api;

#ifdef __cplusplus
}
#endif

#endif
