/* SPDX-License-Identifier: Apache-2.0
 *
 * Conventions of the Backplane plugin ABI. They apply to every header of this folder.
 *
 * SHAPE. A plugin is one shared object that exports one data symbol, `bp_plugin_v1` (plugin.h). The major version is
 * part of the symbol's name, so a core of another major does not find it. Everything else is reached through pointers
 * from there. The core never resolves a second symbol, and a plugin never resolves a symbol of the core or the program.
 *
 * STRUCTS. The first field of each growing struct is `uint32_t struct_size`, set by the code that fills in the struct.
 * Fields are only ever appended. A reader checks BP_HAS(ptr, field) before it reads a field newer than minor 0; a
 * missing field means that the feature is absent, never an error. Code that fills in a struct it was given does not
 * change its struct_size and writes only the fields it knows. Structs that are elements of arrays or members of other
 * structs have no struct_size and are frozen for the life of the major version: bp_buffer, bp_key_value,
 * bp_note_header, bp_note_backend. Arrays of growing structs are arrays of pointers. Reserved fields are zero; the code
 * that passes a struct to be filled in has zeroed it. At minor 0 no field needs BP_HAS.
 *
 * COPIES. Code that copies a growing struct copies at most the bytes that its own headers know, and sets struct_size of
 * the copy to the number of bytes copied: the copy lacks the fields that a newer owner appended. Pointers to the struct
 * itself are passed on unchanged. The SDK has sdk::known_part() and sdk::OwnedOp for a bp_op.
 *
 * INTEGERS have fixed widths. No bool, enum type, long, size_t, bitfield or variadic function crosses the boundary.
 * Enumerations are anonymous; the fields that hold them are uint32_t. layout.h asserts a little-endian 64-bit platform.
 *
 * STRINGS are NUL-terminated UTF-8 and owned by the side that made them, unless the field says otherwise. Static
 * descriptors (bp_plugin and everything it points to) live as long as the process: plugins are never unloaded.
 *
 * DURATIONS are int64_t nanoseconds. 0 does not wait: an operation that is not done at once is BP_TIMEOUT (BP_AGAIN
 * from work_wait). BP_NO_TIMEOUT (-1) and every other negative value except BP_INHERIT_TIMEOUT wait until done or
 * aborted. BP_INHERIT_TIMEOUT means the timeout of the group or worker; only the core's API accepts it, and a plugin
 * never receives it. INT64_MAX is legal. Deadlines use CLOCK_MONOTONIC. On a machine that is not overloaded, a deadline
 * is exceeded by at most 100 ms or a tenth of the duration, whichever is more.
 *
 * ERRORS. A function that can fail returns an int32_t status (status.h) and fills in the caller's bp_error, which may
 * be NULL. No exception crosses this boundary.
 *
 * THREADS. Each function carries one of these tags:
 *   [any]            from any thread, concurrently with itself and everything else
 *   [one-at-a-time]  from any thread, but never concurrently with itself on the same object
 *   [exclusive]      no other call on the object is running, and none begins before it has returned
 * and says whether it may block. The core holds no lock while it calls a plugin. A plugin may call the host table from
 * any of its threads.
 *
 * PROCESS STATE. Loading a plugin has no effect: no thread, no output, no signal handler, setenv, chdir, atexit, and no
 * static constructor with effects. Work starts in `probe` or `init`. Descriptors are opened close-on-exec. Threads of a
 * plugin block all signals, and its writes raise no SIGPIPE. A child of fork must not use the agents of its parent. Its
 * end, also by exit, does not affect them and waits for nothing.
 */
#ifndef BACKPLANE_ABI_VERSION_H
#define BACKPLANE_ABI_VERSION_H

#include <stddef.h>
#include <stdint.h>

#define BP_ABI_MAJOR 1
#define BP_ABI_MINOR 0 /* the minor of these headers; a core loads a plugin iff its own minor >= need_minor */

#define BP_MAGIC UINT32_C(0x314b5042) /* "BPK1", little endian: in the ELF note and in bp_plugin */

#define BP_NO_TIMEOUT INT64_C(-1)
#define BP_INHERIT_TIMEOUT INT64_MIN

/* True if the code that filled in *ptr knew `field`. */
#define BP_HAS(ptr, field) \
  ((ptr)->struct_size >= (uint32_t)(offsetof(__typeof__(*(ptr)), field) + sizeof((ptr)->field)))

/* Exports the one symbol of a plugin. */
#define BP_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
#define BP_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define BP_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#endif
