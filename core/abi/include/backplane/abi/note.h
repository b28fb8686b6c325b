/* SPDX-License-Identifier: Apache-2.0
 *
 * The ELF note from which `backplane list` describes a plugin without running its code. The core does not open a plugin
 * without this note, and refuses one whose note disagrees with its bp_plugin.
 *
 * The note is a bp_note_header followed by `backend_count` records, placed in a section named `.note.backplane`. In C:
 *
 *     static const struct { bp_note_header header; bp_note_backend backends[1]; } note
 *         __attribute__((section(BP_NOTE_SECTION), used, aligned(4))) = {
 *             BP_NOTE_HEADER_INIT(1, 0, ""),
 *             {{"acme", "1.0", BP_KIND_PROCESS_GROUP, BP_BACKEND_TAGS, BP_BIT(BP_SEND) | BP_BIT(BP_RECV), 0}}};
 *
 * All numbers are little endian. Both structs are frozen. A record can only grow through a larger `backend_size`, which
 * readers use as the stride.
 */
#ifndef BACKPLANE_ABI_NOTE_H
#define BACKPLANE_ABI_NOTE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BP_NOTE_SECTION ".note.backplane"
#define BP_NOTE_NAME "Backplane"
#define BP_NOTE_TYPE 1
#define BP_NOTE_MAX_BACKENDS 16

typedef struct bp_note_header {
  uint32_t name_size;        /* ELF note header: size of `name` with its NUL, 10 */
  uint32_t description_size; /* ELF note header: bytes from `magic` to the end of the last record */
  uint32_t type;             /* ELF note header: BP_NOTE_TYPE */
  char name[12];             /* "Backplane", padded with NULs */
  uint32_t magic;            /* BP_MAGIC */
  uint32_t abi_major;
  uint32_t built_minor;
  uint32_t need_minor;
  uint32_t backend_count; /* 1 .. BP_NOTE_MAX_BACKENDS */
  uint32_t backend_size;  /* bytes of one record, at least sizeof(bp_note_backend) */
  char needs[80];         /* ids of core extensions that the plugin requires, separated by spaces ("backplane.rpc/1
                             backplane.reduce/1"), NUL-terminated, padded with NULs; usually empty. A core without one
                             of them refuses the plugin */
} bp_note_header;

typedef struct bp_note_backend {
  char id[36];       /* bp_backend.id, NUL-terminated, padded with NULs */
  char version[24];  /* bp_backend.version, likewise */
  uint32_t kinds;    /* bp_backend.kinds */
  uint32_t flags;    /* bp_backend.flags */
  uint32_t ops;      /* BP_BIT(op) of each declared capability */
  uint32_t ops_high; /* upper half of that mask; not used by any operation yet */
} bp_note_backend;

/* Initialiser of the header of a note with `count` records, for a plugin that requires at least core minor `need_minor`
 * and the extensions `needs` (a string literal, "" for none). */
#define BP_NOTE_HEADER_INIT(count, need_minor, needs)                                                                  \
  {                                                                                                                    \
    sizeof BP_NOTE_NAME, sizeof(bp_note_header) - offsetof(bp_note_header, magic) + (count) * sizeof(bp_note_backend), \
        BP_NOTE_TYPE, BP_NOTE_NAME, BP_MAGIC, BP_ABI_MAJOR, BP_ABI_MINOR, (need_minor), (count),                       \
        sizeof(bp_note_backend), needs                                                                                 \
  }

#ifdef __cplusplus
}
#endif

#endif
