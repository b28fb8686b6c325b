/* SPDX-License-Identifier: Apache-2.0
 *
 * Statuses and errors. Each of the few statuses says who caused the failure; the text has the details.
 */
#ifndef BACKPLANE_ABI_STATUS_H
#define BACKPLANE_ABI_STATUS_H

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  BP_OK = 0,
  BP_INVALID = 1,     /* caused by the caller: an argument, option or order of calls is wrong. Nothing was done; a recv
                         whose     buffer was too small has consumed its message (op.h) */
  BP_UNSUPPORTED = 2, /* this backend, machine or build cannot do it; nothing was done */
  BP_TIMEOUT = 3,     /* the deadline passed; the cause is unknown */
  BP_CANCELLED = 4,   /* requested on this rank by cancel, abort or destroy */
  BP_PEER_LOST = 5,   /* another rank's process, host or connection was lost; bp_error.peer_rank names it if known */
  BP_RESOURCE = 6,    /* caused by the machine: memory, descriptors, ports, disk, permissions */
  BP_AGAIN = 7,       /* not an error: still in flight, call again */
  BP_INTERNAL = 8     /* caused by the plugin or the library: a bug, or an unexpected result of an underlying library */
};

#define BP_ERROR_TEXT_SIZE 1024
#define BP_ERROR_GROUP_SIZE 64

/* An error report. Owned and initialised by the caller (bp_error_init), filled in by the callee, no cleanup needed. The
 * callee writes it only if it returns a status other than BP_OK and BP_AGAIN. */
typedef struct bp_error {
  uint32_t struct_size; /* set by the caller */
  int32_t status;       /* equal to the return value of the function */
  int64_t native_code;  /* errno, zmq_errno(), ncclResult_t ...; 0 if there is none */
  int32_t peer_rank;    /* the rank in this group that the failure concerns; -1 if unknown */
  uint32_t reserved;
  char text[BP_ERROR_TEXT_SIZE];   /* one sentence on one line: what failed, where, what to do. UTF-8, NUL-terminated; a
                                      longer text is truncated at a character boundary */
  char group[BP_ERROR_GROUP_SIZE]; /* name of the process group or RPC worker that failed, truncated like the text;
                                      empty if there is none. Set by the core */
} bp_error;

/* Initialises *err: no error, no peer. */
static inline void bp_error_init(bp_error* err) {
  err->struct_size = (uint32_t)sizeof *err;
  err->status = BP_OK;
  err->native_code = 0;
  err->peer_rank = -1;
  err->reserved = 0;
  err->text[0] = '\0';
  err->group[0] = '\0';
}

/* Fills in *err (may be NULL) and returns `status`, so that a failing function can end in one line. `text` is truncated
 * at a UTF-8 boundary if it does not fit; NULL means an empty text. */
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
