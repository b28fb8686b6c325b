/* SPDX-License-Identifier: Apache-2.0
 *
 * Conventions of the Backplane plugin ABI. They hold for every header of this folder and stand here once.
 *
 * SHAPE. A plugin is one shared object that exports one data symbol, `bp_plugin_v1` (plugin.h). Its major version is
 * part of the symbol's name, so a core of another major does not find it. Everything else is reached through pointers
 * from there. The core never resolves a second symbol, and a plugin never resolves one from the core or the program.
 *
 * STRUCTS. The first field of each growing struct is `uint32_t struct_size`, set by whoever fills the struct in. Fields
 * are only ever appended. A reader asks BP_HAS(ptr, field) before it reads a field that is newer than minor 0; a
 * missing tail means that the feature is absent, never an error. Whoever fills in a struct of somebody else leaves its
 * struct_size as it is and writes nothing behind the fields that it knows. Structs that are elements of arrays or
 * members of other structs have no struct_size and are frozen for the life of the major version: bp_buffer,
 * bp_key_value, bp_note_header, bp_note_backend. Arrays of growing structs are arrays of pointers. Reserved fields are
 * zero, and whoever hands out a struct to be filled in has zeroed it. At minor 0 nothing needs BP_HAS.
 *
 * COPIES. Code that copies a growing struct copies at most the bytes that its own headers know, and sets the copy's
 * struct_size to the number of bytes copied: the copy does not have the fields that a newer owner appended. A pointer
 * to the struct itself is passed on as it is. The SDK has sdk::known_part() and sdk::OwnedOp for a bp_op.
 *
 * INTEGERS have fixed widths. No bool, enum type, long, size_t, bitfield or variadic function crosses the boundary.
 * Enumerations are anonymous; the fields that hold them are uint32_t. A little-endian 64-bit platform is asserted in
 * layout.h.
 *
 * STRINGS are NUL-terminated UTF-8 and owned by whoever made them, unless the field says otherwise. Static descriptors
 * (bp_plugin and all it points to) live as long as the process: plugins are never unloaded.
 *
 * DURATIONS are int64_t nanoseconds. 0 does not wait: what is not done at once is BP_TIMEOUT (BP_AGAIN from work_wait).
 * BP_NO_TIMEOUT (-1), like any other negative value but one, waits until done or aborted. The one, BP_INHERIT_TIMEOUT,
 * stands for the timeout of the group or worker that is asked; only the core's API takes it, and a plugin never sees
 * it: it is given BP_NO_TIMEOUT or what is not negative. INT64_MAX is a legal value. A deadline is kept on a clock that
 * does not jump (CLOCK_MONOTONIC) and overshot by 100 ms or a tenth of it at most, whichever is more, on a machine that
 * is not overloaded.
 *
 * ERRORS. A function that can fail returns an int32_t status (status.h) and fills the caller's bp_error, which may be
 * NULL. Nothing throws across this boundary.
 *
 * THREADS. Each function carries one of these tags:
 *   [any]            from any thread, concurrently with itself and everything else
 *   [one-at-a-time]  from any thread, but never concurrently with itself on the same object
 *   [exclusive]      alone: no other call on the object runs, and none begins before it has returned
 * and says whether it may block. The core holds no lock of its own while it calls a plugin. A plugin may call the host
 * table from any thread of its own.
 *
 * PROCESS MANNERS. Loading a plugin has no effect: no thread, no output, no signal handler, setenv, chdir, atexit, and
 * no static constructor with effects. Work starts in `probe` or `init`. Descriptors opened are close-on-exec. Threads
 * of a plugin block all signals, and its writes raise no SIGPIPE. After fork the child may use no agent of its parent.
 */
#ifndef BACKPLANE_ABI_VERSION_H
#define BACKPLANE_ABI_VERSION_H

#include <stddef.h>
#include <stdint.h>

#define BP_ABI_MAJOR 1
#define BP_ABI_MINOR 0 /* what these headers describe; a core loads a plugin iff its own minor >= need_minor */

#define BP_MAGIC UINT32_C(0x314b5042) /* "BPK1", little endian: in the ELF note and in bp_plugin */

#define BP_NO_TIMEOUT INT64_C(-1)
#define BP_INHERIT_TIMEOUT INT64_MIN

/* True if the struct that `ptr` points to was filled in by someone who knew `field`. */
#define BP_HAS(ptr, field) \
  ((ptr)->struct_size >= (uint32_t)(offsetof(__typeof__(*(ptr)), field) + sizeof((ptr)->field)))

/* The one export of a plugin. */
#define BP_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
#define BP_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define BP_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#endif
