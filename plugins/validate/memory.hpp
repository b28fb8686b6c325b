// SPDX-License-Identifier: Apache-2.0
//
// Reading the program's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace backplane::validate {

struct Region {
  uintptr_t begin;
  uintptr_t end;  // after the last byte; regions are never empty
};

// Calls take(bytes, chunk) for each chunk of 64 KiB of a region until it answers false. `careful`: the memory may be
// gone, since a program that dropped its handle of an operation may free the buffers as soon as the operation is done,
// before anybody asked whether it is; what cannot be read any more is left out. Costs a copy.
void read_chunks(const Region& region, bool careful,
                 const std::function<bool(const std::byte* bytes, const Region& chunk)>& take);

}  // namespace backplane::validate
