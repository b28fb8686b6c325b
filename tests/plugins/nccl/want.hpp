// SPDX-License-Identifier: Apache-2.0
//
// An allocation that fails, wherever in the program it is made.
#pragma once

#include <cstdint>
#include <functional>

namespace backplane::test {

// Of the allocations that this thread makes in `call`, the one of this number (from 1) fails. False: there were fewer.
bool lacks_memory(uint64_t number, const std::function<void()>& call);

}  // namespace backplane::test
