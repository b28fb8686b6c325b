// SPDX-License-Identifier: Apache-2.0
//
// Allocations that fail: those that a thread makes in code of the plugin.
#pragma once

#include <cstdint>

namespace backplane::test {

// From now on this thread's allocations in code of the plugin, which has been loaded, are counted; the one of this
// number (from 1) fails.
void fail_allocation(uint64_t number);
// No more. Returns how many there were.
uint64_t end_allocations();

}  // namespace backplane::test
