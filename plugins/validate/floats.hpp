// SPDX-License-Identifier: Apache-2.0
//
// Elements that are not finite.
#pragma once

#include <cstdint>

namespace backplane::validate {

struct NotFinite {
  uint64_t count = 0;  // elements that are NaN or infinite; a complex one if either part is
  uint64_t first = 0;  // index of the first, if there is one
  bool first_is_nan = false;
};

bool is_floating(uint32_t dtype);

// Looks at `count` elements of host memory. None are found in a dtype that is not floating. One pass.
NotFinite find_not_finite(uint32_t dtype, const void* data, uint64_t count);

}  // namespace backplane::validate
