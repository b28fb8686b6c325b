/* SPDX-License-Identifier: Apache-2.0
 *
 * Statuses and errors. There are few statuses, and each says whose fault it is; the text says the rest.
 */
#ifndef BACKPLANE_ABI_STATUS_H
#define BACKPLANE_ABI_STATUS_H

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  BP_OK = 0,
  BP_INVALID = 1, /* the caller's fault: an argument, option or order of calls is wrong; nothing was done (but a recv
                     whose buffer was too small has consumed its message, see op.h) */
  BP_UNSUPPORTED = 2, /* nobody's fault: this backend, machine or build cannot do it; nothing was done */
  BP_TIMEOUT = 3,     /* the deadline passed; whose fault is not known */
  BP_CANCELLED = 4,   /* somebody on this rank asked for it: cancel, abort or destroy */
  BP_PEER_LOST = 5,   /* another rank's process, host or connection is gone; bp_error.peer_rank names it if known */
  BP_RESOURCE = 6,    /* the machine's fault: memory, descriptors, ports, disk, permissions */
  BP_AGAIN = 7,       /* not an error: not done yet, ask again */
  BP_INTERNAL = 8     /* the plugin's or the library's fault, a bug or an unexpected answer from below */
};

#define BP_ERROR_TEXT_SIZE 1024
#define BP_ERROR_GROUP_SIZE 64

/* An error report. Owned and initialised by the caller (bp_error_init), filled in by the callee, no cleanup needed.
 * The callee writes only if it returns something other than BP_OK or BP_AGAIN. */
typedef struct bp_error {
  uint32_t struct_size; /* set by the caller */
  int32_t status;       /* the same value as the function returned */
  int64_t native_code;  /* errno, zmq_errno(), ncclResult_t ...; 0 if there is none */
  int32_t peer_rank;    /* the rank in this group that the failure is about, -1 if unknown */
  uint32_t reserved;
  char text[BP_ERROR_TEXT_SIZE]; /* one sentence, on one line: what, where, what to do. UTF-8, always NUL-terminated; a
                                    longer text is cut at a character boundary */
  char group[BP_ERROR_GROUP_SIZE]; /* the name of the process group or RPC worker that failed, cut like the text; empty
                                      if there is none. Set by the core */
} bp_error;

/* Makes *err ready to be passed: no error, no peer. */
static inline void bp_error_init(bp_error* err) {
  err->struct_size = (uint32_t)sizeof *err;
  err->status = BP_OK;
  err->native_code = 0;
  err->peer_rank = -1;
  err->reserved = 0;
  err->text[0] = '\0';
  err->group[0] = '\0';
}

/* Fills in *err (which may be NULL) and returns `status`, so that a failing function can end in one line. `text` is cut
 * at a UTF-8 boundary if it does not fit; NULL stands for an empty text. */
static inline int32_t bp_error_set(bp_error* err, int32_t status, int64_t native_code, int32_t peer_rank,
                                   const char* text) {
  if (err != NULL) {
    size_t size = 0;
    err->status = status;
    err->native_code = native_code;
    err->peer_rank = peer_rank;
    while (text != NULL && text[size] != '\0' && size < BP_ERROR_TEXT_SIZE - 1) {
      err->text[size] = text[size];
      ++size;
    }
    if (text != NULL && text[size] != '\0') {
      while (size > 0 && ((unsigned char)text[size] & 0xC0U) == 0x80U) --size;
    }
    err->text[size] = '\0';
  }
  return status;
}

#ifdef __cplusplus
}
#endif

#endif
