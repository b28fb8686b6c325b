// SPDX-License-Identifier: Apache-2.0
//
// An allocation of the program or its libraries that fails.
#pragma once

#include <cstdint>
#include <functional>

namespace backplane::test {

// Runs `call`. Allocation `number` (from 1) that this thread makes in it fails. False: it made fewer allocations.
bool with_failing_allocation(uint64_t number, const std::function<void()>& call);

}  // namespace backplane::test
