// SPDX-License-Identifier: Apache-2.0
//
// Reads the program's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace backplane::validate {

struct Region {
  uintptr_t begin;
  uintptr_t end;  // one past the last byte; regions are never empty
};

// Calls take(bytes, chunk) for each chunk of 64 KiB of a region until it returns false. `may_be_freed`: chunks that are
// no longer mapped are skipped, at the cost of a copy. A program that has dropped the handle of an operation may free
// its buffers before the operation is tested for completion.
void read_chunks(const Region& region, bool may_be_freed,
                 const std::function<bool(const std::byte* bytes, const Region& chunk)>& take);

}  // namespace backplane::validate
