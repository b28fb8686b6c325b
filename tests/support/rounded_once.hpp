// SPDX-License-Identifier: Apache-2.0
//
// Reference for reductions of f16, bf16, f8e4m3 and f8e5m2 that round once: in f32, in the order of the inputs, rounded
// at the end.
#pragma once

#include <cstdint>
#include <cstring>

#include "backplane/abi/types.h"
#include "reduce/small_float.hpp"

namespace backplane::test {

inline bool is_small_float(uint32_t dtype) {
  return dtype == BP_F16 || dtype == BP_BF16 || dtype == BP_F8E4M3 || dtype == BP_F8E5M2;
}

// `scalars`: NULL, or for each input NULL or its factor. avg divides by the number of inputs.
template <class Format>
void reduce_and_round_once(uint32_t reduce_op, void* out, const void* const* inputs, const void* const* scalars,
                           uint64_t inputs_count, uint64_t count) {
  using Bits = typename Format::Bits;
  const auto number = [](const void* from, uint64_t i) {
    Bits bits;
    std::memcpy(&bits, static_cast<const char*>(from) + i * sizeof bits, sizeof bits);
    return Format::to_float(bits);
  };
  for (uint64_t i = 0; i < count; ++i) {
    float result = 0;
    for (uint64_t k = 0; k < inputs_count; ++k) {
      float value = number(inputs[k], i);
      if (scalars != nullptr && scalars[k] != nullptr) value *= number(scalars[k], 0);
      result = k == 0 ? value : (reduce_op == BP_PROD ? result * value : result + value);
    }
    if (reduce_op == BP_AVG) result /= static_cast<float>(inputs_count);
    const Bits bits = Format::from_float(result);
    std::memcpy(static_cast<char*>(out) + i * sizeof bits, &bits, sizeof bits);
  }
}

// `dtype` is a small float, `reduce_op` neither min nor max.
inline void reduce_and_round_once(uint32_t dtype, uint32_t reduce_op, void* out, const void* const* inputs,
                                  const void* const* scalars, uint64_t inputs_count, uint64_t count) {
  const auto reduce = dtype == BP_F16      ? reduce_and_round_once<core::F16>
                      : dtype == BP_BF16   ? reduce_and_round_once<core::BF16>
                      : dtype == BP_F8E4M3 ? reduce_and_round_once<core::F8E4M3>
                                           : reduce_and_round_once<core::F8E5M2>;
  reduce(reduce_op, out, inputs, scalars, inputs_count, count);
}

}  // namespace backplane::test
