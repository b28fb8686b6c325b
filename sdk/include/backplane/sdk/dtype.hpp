// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backplane/abi/types.h"

namespace backplane::sdk {

// Bytes of one element of a dtype of abi/types.h.
constexpr uint64_t element_size(uint32_t dtype) {
  constexpr uint64_t kSizes[BP_DTYPE_COUNT] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 8, 16};
  return dtype < BP_DTYPE_COUNT ? kSizes[dtype] : 0;
}

}  // namespace backplane::sdk
