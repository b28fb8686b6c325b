/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.security/1", an extension of the host: whether the job has a secret, so that nobody without it may come
 * near. The store of such a job is encrypted, and only the job's ranks read and write it: what a rank puts there (a
 * public key, an address, a random token) is known to come from a rank.
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
  /* 1: the job has a secret. A backend that declares BP_BACKEND_AUTHENTICATES then takes nothing from, and sends
   * nothing to, whoever has not proven to be a rank of its group, and fails to start with BP_UNSUPPORTED if it cannot
   * do so here (a library too old). The core starts no other backend that leaves the process. 0: it has none. */
  uint32_t secure;
} bp_security_api;

#ifdef __cplusplus
}
#endif

#endif
