// SPDX-License-Identifier: Apache-2.0
//
// Element-wise reductions with the signature of gloo's algorithms: out[i] = left[i] op right[i].
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "backplane/sdk/sdk.hpp"

namespace backplane::gloo {

using Reduction = std::function<void(void* out, const void* left, const void* right, size_t count)>;

// Follows abi/types.h. Integers, f32, f64 and bool are compiled here; the core combines the other dtypes (host
// extension backplane.reduce/1). `host` must outlive the result.
Reduction reduction(const sdk::Host& host, uint32_t dtype, uint32_t reduce_op);

}  // namespace backplane::gloo
