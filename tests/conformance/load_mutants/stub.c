/* SPDX-License-Identifier: Apache-2.0
 *
 * A library for mutants to be linked to. */
#include <stdint.h>

int32_t backplane_stub(void);
__attribute__((visibility("default"))) int32_t backplane_stub(void) { return 0; }
