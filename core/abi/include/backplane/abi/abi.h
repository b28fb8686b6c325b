/* SPDX-License-Identifier: Apache-2.0
 *
 * The complete plugin ABI and the assertions of its layout. Read version.h first, then op.h, process_group.h, plugin.h.
 */
#ifndef BACKPLANE_ABI_ABI_H
#define BACKPLANE_ABI_ABI_H

#include "layout.h" /* includes all of them */

#endif
