/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.native/1", an extension of a process group: the handle of the underlying library, for programs that call
 * that library directly.
 */
#ifndef BACKPLANE_ABI_EXT_NATIVE_H
#define BACKPLANE_ABI_EXT_NATIVE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_NATIVE "backplane.native/1"

typedef struct bp_native_api {
  uint32_t struct_size;
  uint32_t reserved;
  const char* type; /* the C type of the handle: "ncclComm_t", "MPI_Comm". Static */
  void* handle; /* the handle itself if it fits in a pointer, otherwise its address. Owned by the backend, valid until
                   abort or destroy */
} bp_native_api;

#ifdef __cplusplus
}
#endif

#endif
