// SPDX-License-Identifier: Apache-2.0
//
// Search for NaN and infinities.
#pragma once

#include <cstdint>

namespace backplane::validate {

struct NotFinite {
  uint64_t count = 0;  // NaN or infinite elements; a complex element counts if either part is
  uint64_t first = 0;  // index of the first; valid if count > 0
  bool first_is_nan = false;
};

bool is_floating(uint32_t dtype);

// Searches `count` elements of host memory in one pass. Finds none if the dtype is not floating-point.
NotFinite find_not_finite(uint32_t dtype, const void* data, uint64_t count);

}  // namespace backplane::validate
