// SPDX-License-Identifier: Apache-2.0
//
// The loops of combine, divide, multiply and reduce for an element type. combine.cpp selects them by dtype.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backplane/abi/types.h"
#include "reduce/reduce.hpp"

namespace backplane::core {

// Memory may be unaligned, since a message may be at any address in a transport's buffer.
template <class T>
T load(const void* from, uint64_t index) {
  T value;
  std::memcpy(&value, static_cast<const unsigned char*>(from) + index * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void store(void* to, uint64_t index, T value) {
  std::memcpy(static_cast<unsigned char*>(to) + index * sizeof(T), &value, sizeof(T));
}

// Two loops, because the compiler vectorises a loop only for pointers that it can assume not to overlap.
template <class T, T (*kOperation)(T, T)>
void apply(void* out, const void* left, const void* right, uint64_t count) {
  if (out == left || out == right) {
    const void* other = out == left ? right : left;  // the operations commute
    for (uint64_t i = 0; i < count; ++i) store<T>(out, i, kOperation(load<T>(out, i), load<T>(other, i)));
  } else {
    for (uint64_t i = 0; i < count; ++i) store<T>(out, i, kOperation(load<T>(left, i), load<T>(right, i)));
  }
}

template <class Element>
struct Kernels {
  using Stored = typename Element::Stored;

  static void combine(uint32_t reduce_op, void* out, const void* left, const void* right, uint64_t count) {
    switch (reduce_op) {
      case BP_SUM:
      case BP_AVG:
      case BP_PREMUL_SUM:
        return apply<Stored, Element::add>(out, left, right, count);
      case BP_PROD:
        return apply<Stored, Element::multiply>(out, left, right, count);
      default:
        break;
    }
    if constexpr (requires { &Element::minimum; }) {
      if (reduce_op == BP_MIN) return apply<Stored, Element::minimum>(out, left, right, count);
      if (reduce_op == BP_MAX) return apply<Stored, Element::maximum>(out, left, right, count);
    }
    if constexpr (requires { &Element::bit_and; }) {
      if (reduce_op == BP_BAND) return apply<Stored, Element::bit_and>(out, left, right, count);
      if (reduce_op == BP_BOR) return apply<Stored, Element::bit_or>(out, left, right, count);
      if (reduce_op == BP_BXOR) return apply<Stored, Element::bit_xor>(out, left, right, count);
    }
  }

  static void divide(void* data, uint64_t divisor, uint64_t count) {
    if constexpr (requires { &Element::divide_by; })
      for (uint64_t i = 0; i < count; ++i) store(data, i, Element::divide_by(load<Stored>(data, i), divisor));
  }

  // Computes in f32. For elements with the type InF32 only.
  static void reduce(uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor, uint64_t count) {
    if constexpr (requires { typename Element::InF32; }) {
      for (uint64_t begin = 0; begin < count; begin += kPart) {
        reduce_part<typename Element::InF32>(reduce_op, out, inputs, divisor, begin, std::min(kPart, count - begin));
      }
    }
  }

  static void multiply(void* out, const void* in, const void* scalar, uint64_t count) {
    const auto factor = load<Stored>(scalar, 0);
    if (out == in) {
      for (uint64_t i = 0; i < count; ++i) store(out, i, Element::multiply(load<Stored>(out, i), factor));
    } else {
      for (uint64_t i = 0; i < count; ++i) store(out, i, Element::multiply(load<Stored>(in, i), factor));
    }
  }

 private:
  static constexpr uint64_t kPart = 512;  // elements; in f32 they fit the L1 cache

  template <class Format>
  static void reduce_part(uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor, uint64_t begin,
                          uint64_t count) {
    float results[kPart];
    for (uint64_t k = 0; k < inputs.size; ++k) {
      const void* const scalar = inputs.scalars == nullptr ? nullptr : inputs.scalars[k];
      const float factor = scalar == nullptr ? 1.0F : Format::to_float(load<Stored>(scalar, 0));
      const auto operand = [in = inputs.data[k], factor, begin](uint64_t i) {
        return Format::to_float(load<Stored>(in, begin + i)) * factor;
      };
      if (k == 0) {
        for (uint64_t i = 0; i < count; ++i) results[i] = operand(i);
      } else if (reduce_op == BP_PROD) {
        for (uint64_t i = 0; i < count; ++i) results[i] *= operand(i);
      } else {
        for (uint64_t i = 0; i < count; ++i) results[i] += operand(i);
      }
    }
    if (reduce_op == BP_AVG) {
      for (uint64_t i = 0; i < count; ++i) results[i] /= static_cast<float>(divisor);
    }
    for (uint64_t i = 0; i < count; ++i) store(out, begin + i, Format::from_float(results[i]));
  }
};

}  // namespace backplane::core
