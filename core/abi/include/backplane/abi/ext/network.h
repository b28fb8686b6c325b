/* SPDX-License-Identifier: Apache-2.0
 *
 * "backplane.network/1", an extension of the host that `init` is given: how this rank reaches the others. For backends
 * that choose the address on which they listen, if no option names one. Older cores return NULL.
 */
#ifndef BACKPLANE_ABI_EXT_NETWORK_H
#define BACKPLANE_ABI_EXT_NETWORK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_EXT_NETWORK "backplane.network/1"

typedef struct bp_network_api {
  uint32_t struct_size;
  uint32_t reserved;
  /* The local address of this rank's connection to the store of the job, numeric and without a port. If it is not a
   * loopback address, other hosts may be reachable from it. Empty if the store is not reached over TCP. Valid as long
   * as the host table. */
  const char* store_address;
} bp_network_api;

#ifdef __cplusplus
}
#endif

#endif
