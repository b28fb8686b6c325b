/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.security/1", an extension of the host: whether the job has a secret. The store of such a job is encrypted,
 * and only the job's ranks can read and write it: a value in it (a public key, an address, a random token) was written
 * by a rank.
 */
#ifndef BACKPLANE_ABI_EXT_SECURITY_H
#define BACKPLANE_ABI_EXT_SECURITY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_SECURITY "backplane.security/1"

typedef struct bp_security_api {
  uint32_t struct_size;
  /* 1: the job has a secret. A backend that declares BP_BACKEND_AUTHENTICATES then exchanges data only with peers that
   * have proven to be ranks of its group, and fails to start with BP_UNSUPPORTED if it cannot verify that here (for
   * example, the library is too old). The core starts no other backend that leaves the process. 0: no secret. */
  uint32_t secure;
} bp_security_api;

#ifdef __cplusplus
}
#endif

#endif
