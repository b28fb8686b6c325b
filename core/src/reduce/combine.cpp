// SPDX-License-Identifier: Apache-2.0
#include "reduce/combine.hpp"

#include <algorithm>
#include <cstring>

#include "reduce/avx2_float.hpp"
#include "reduce/elements.hpp"
#include "reduce/kernels.hpp"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace backplane::core {

namespace {

// Calls function.template operator()<Kernels<...>>() for the dtype, nothing for an unknown dtype.
template <class Function>
void with_kernels(uint32_t dtype, const Function& function) {
  switch (dtype) {
    case BP_BOOL:
      return function.template operator()<Kernels<Boolean>>();
    case BP_I8:
      return function.template operator()<Kernels<Integer<int8_t>>>();
    case BP_U8:
      return function.template operator()<Kernels<Integer<uint8_t>>>();
    case BP_I16:
      return function.template operator()<Kernels<Integer<int16_t>>>();
    case BP_U16:
      return function.template operator()<Kernels<Integer<uint16_t>>>();
    case BP_I32:
      return function.template operator()<Kernels<Integer<int32_t>>>();
    case BP_U32:
      return function.template operator()<Kernels<Integer<uint32_t>>>();
    case BP_I64:
      return function.template operator()<Kernels<Integer<int64_t>>>();
    case BP_U64:
      return function.template operator()<Kernels<Integer<uint64_t>>>();
    case BP_F16:
      return function.template operator()<Kernels<SmallFloating<F16>>>();
    case BP_BF16:
      return function.template operator()<Kernels<SmallFloating<BF16>>>();
    case BP_F32:
      return function.template operator()<Kernels<Floating<float>>>();
    case BP_F64:
      return function.template operator()<Kernels<Floating<double>>>();
    case BP_F8E4M3:
      return function.template operator()<Kernels<SmallFloating<F8E4M3>>>();
    case BP_F8E5M2:
      return function.template operator()<Kernels<SmallFloating<F8E5M2>>>();
    case BP_C64:
      return function.template operator()<Kernels<Complex<float>>>();
    case BP_C128:
      return function.template operator()<Kernels<Complex<double>>>();
    default:
      return;
  }
}

#ifdef __x86_64__
// The same loops, compiled for AVX2. `flatten` inlines them here.
[[gnu::target("avx2"), gnu::flatten]] void combine_avx2(uint32_t dtype, uint32_t reduce_op, void* out, const void* left,
                                                        const void* right, uint64_t count) {
  with_kernels(dtype, [=]<class K>() { K::combine(reduce_op, out, left, right, count); });
}
[[gnu::target("avx2"), gnu::flatten]] void divide_avx2(uint32_t dtype, void* data, uint64_t divisor, uint64_t count) {
  with_kernels(dtype, [=]<class K>() { K::divide(data, divisor, count); });
}
[[gnu::target("avx2"), gnu::flatten]] void reduce_avx2(uint32_t dtype, uint32_t reduce_op, void* out,
                                                       const Inputs& inputs, uint64_t divisor, uint64_t count) {
  with_kernels(dtype, [=, &inputs]<class K>() { K::reduce(reduce_op, out, inputs, divisor, count); });
}
[[gnu::target("avx2"), gnu::flatten]] void multiply_avx2(uint32_t dtype, void* out, const void* in, const void* scalar,
                                                         uint64_t count) {
  with_kernels(dtype, [=]<class K>() { K::multiply(out, in, scalar, count); });
}

// Determined when the library is loaded, because a check in each call costs as much as adding one element. Earlier
// calls use the portable functions.
const bool has_avx2 = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") != 0;
}();
// Not all compilers support __builtin_cpu_supports("f16c").
const bool has_f16c = [] {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_avx2 && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}();
#endif

bool is_small_float(uint32_t dtype) {
  return dtype == BP_F16 || dtype == BP_BF16 || dtype == BP_F8E4M3 || dtype == BP_F8E5M2;
}
bool in_f32(uint32_t dtype, uint32_t reduce_op) {
  return is_small_float(dtype) && reduce_op != BP_MIN && reduce_op != BP_MAX;
}

constexpr uint64_t kPart = UINT64_C(4) << 10;  // bytes; stays in the cache; three are on the stack

// Combines pairs, part by part.
void reduce_pairs(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor,
                  uint64_t count) {
  const uint64_t element = dtype_size(dtype);
  alignas(64) unsigned char temporary[kPart], first_scaled[kPart], scaled[kPart];
  // An input after the first two that is also the output must not be overwritten before it is read.
  const void* const* const inputs_end = inputs.data + inputs.size;
  const bool in_place = inputs.size > 2 && std::find(inputs.data + 2, inputs_end, out) != inputs_end;
  for (uint64_t at = 0; at < count * element; at += kPart) {
    const uint64_t size = std::min(kPart, count * element - at);
    const auto operand = [&inputs, dtype, at, part = size / element](uint64_t k, void* buffer) {
      const void* const in = static_cast<const unsigned char*>(inputs.data[k]) + at;
      if (inputs.scalars == nullptr || inputs.scalars[k] == nullptr) return in;
      multiply(dtype, buffer, in, inputs.scalars[k], part);
      return static_cast<const void*>(buffer);
    };
    void* const result = static_cast<unsigned char*>(out) + at;
    void* const to = in_place ? temporary : result;
    const void* const first = operand(0, first_scaled);
    if (inputs.size == 1) std::memmove(to, first, size);
    for (uint64_t k = 1; k < inputs.size; ++k) {
      combine(dtype, reduce_op, to, k == 1 ? first : to, operand(k, scaled), size / element);
    }
    if (reduce_op == BP_AVG) divide(dtype, to, divisor, size / element);
    if (in_place) std::memcpy(result, to, size);
  }
}

}  // namespace

void combine_portable(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
                      uint64_t count) {
  with_kernels(dtype, [=]<class K>() { K::combine(reduce_op, out, left, right, count); });
}

void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right, uint64_t count) {
#ifdef __x86_64__
  if (is_small_float(dtype) && has_f16c && avx2::combine(dtype, reduce_op, out, left, right, count)) return;
  if (has_avx2) return combine_avx2(dtype, reduce_op, out, left, right, count);
#endif
  combine_portable(dtype, reduce_op, out, left, right, count);
}

void divide(uint32_t dtype, void* data, uint64_t divisor, uint64_t count) {
#ifdef __x86_64__
  if (has_f16c && avx2::divide(dtype, data, divisor, count)) return;
  if (has_avx2) return divide_avx2(dtype, data, divisor, count);
#endif
  with_kernels(dtype, [=]<class K>() { K::divide(data, divisor, count); });
}

void multiply(uint32_t dtype, void* out, const void* in, const void* scalar, uint64_t count) {
#ifdef __x86_64__
  if (has_f16c && avx2::multiply(dtype, out, in, scalar, count)) return;
  if (has_avx2) return multiply_avx2(dtype, out, in, scalar, count);
#endif
  with_kernels(dtype, [=]<class K>() { K::multiply(out, in, scalar, count); });
}

void reduce_portable(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor,
                     uint64_t count) {
  if (!in_f32(dtype, reduce_op)) return reduce_pairs(dtype, reduce_op, out, inputs, divisor, count);
  with_kernels(dtype, [=, &inputs]<class K>() { K::reduce(reduce_op, out, inputs, divisor, count); });
}

void reduce(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor, uint64_t count) {
  if (inputs.size == 2 && inputs.scalars == nullptr && reduce_op != BP_AVG) {  // combine also rounds once
    return combine(dtype, reduce_op, out, inputs.data[0], inputs.data[1], count);
  }
#ifdef __x86_64__
  if (in_f32(dtype, reduce_op)) {
    if (has_f16c && avx2::reduce(dtype, reduce_op, out, inputs, divisor, count)) return;
    if (has_avx2) return reduce_avx2(dtype, reduce_op, out, inputs, divisor, count);
  }
#endif
  reduce_portable(dtype, reduce_op, out, inputs, divisor, count);
}

}  // namespace backplane::core
