// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of one element of each dtype. An element type has `Stored`, its representation in memory, and
// functions on Stored values: add, multiply, divide_by, and, as far as types.h allows, minimum, maximum, bit_and,
// bit_or, bit_xor.
//
// Except divide_by, they give the same bits for either order of operands. A NaN result is always the quiet NaN of its
// type, sign clear. minimum and maximum treat -0 as less than +0.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "reduce/small_float.hpp"

namespace backplane::core {

template <class T>
struct Integer {
  using Stored = T;
  // Unsigned, so that overflow wraps, and not narrower than unsigned, so that it is not promoted to int.
  using Wide = std::conditional_t<sizeof(T) < sizeof(uint32_t), uint32_t, std::make_unsigned_t<T>>;
  static T add(T a, T b) { return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b)); }
  static T multiply(T a, T b) { return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b)); }
  static T minimum(T a, T b) { return b < a ? b : a; }
  static T maximum(T a, T b) { return a < b ? b : a; }
  static T bit_and(T a, T b) { return static_cast<T>(a & b); }
  static T bit_or(T a, T b) { return static_cast<T>(a | b); }
  static T bit_xor(T a, T b) { return static_cast<T>(a ^ b); }
  static T divide_by(T a, uint64_t divisor) {
    if (divisor > static_cast<uint64_t>(std::numeric_limits<T>::max())) {
      // Only the minimum of a signed type can have the magnitude of such a divisor.
      const bool is_minus_divisor = std::is_signed_v<T> && a < 0 && uint64_t{0} - static_cast<uint64_t>(a) == divisor;
      return is_minus_divisor ? static_cast<T>(-1) : T{0};
    }
    return static_cast<T>(a / static_cast<T>(divisor));
  }
};

// Operands other than 0 and 1 count as 1.
struct Boolean {
  using Stored = uint8_t;
  static uint8_t bit_or(uint8_t a, uint8_t b) { return (a | b) != 0 ? 1 : 0; }
  static uint8_t bit_and(uint8_t a, uint8_t b) {
    return static_cast<uint8_t>(static_cast<int>(a != 0) & static_cast<int>(b != 0));
  }
  static uint8_t bit_xor(uint8_t a, uint8_t b) { return (a != 0) != (b != 0) ? 1 : 0; }
  static uint8_t add(uint8_t a, uint8_t b) { return bit_or(a, b); }
  static uint8_t multiply(uint8_t a, uint8_t b) { return bit_and(a, b); }
  static uint8_t minimum(uint8_t a, uint8_t b) { return bit_and(a, b); }
  static uint8_t maximum(uint8_t a, uint8_t b) { return bit_or(a, b); }
};

// Maps the bits of an IEEE 754 number to an integer of the same order, by inverting the bits below the sign of negative
// numbers. Its own inverse.
template <class Signed>
Signed ordered(Signed bits) {
  return static_cast<Signed>(bits ^ ((bits >> (8 * sizeof(Signed) - 1)) & std::numeric_limits<Signed>::max()));
}

template <class F>
struct Floating {
  using Stored = F;
  using Bits = std::conditional_t<sizeof(F) == 4, int32_t, int64_t>;
  static F one_nan(F a) { return a != a ? std::numeric_limits<F>::quiet_NaN() : a; }
  static F add(F a, F b) { return one_nan(a + b); }
  static F multiply(F a, F b) { return one_nan(a * b); }
  static F divide_by(F a, uint64_t divisor) { return one_nan(a / static_cast<F>(divisor)); }
  static F minimum(F a, F b) { return pick(a, b, std::min(key(a), key(b))); }
  static F maximum(F a, F b) { return pick(a, b, std::max(key(a), key(b))); }

 private:
  static Bits key(F a) { return ordered(std::bit_cast<Bits>(a)); }
  static F pick(F a, F b, Bits key) {
    const F picked = std::bit_cast<F>(ordered(key));
    return a != a || b != b ? std::numeric_limits<F>::quiet_NaN() : picked;
  }
};

template <class Format>
struct SmallFloating {
  using InF32 = Format;
  using Stored = typename Format::Bits;
  using Signed = std::make_signed_t<Stored>;
  static Stored add(Stored a, Stored b) { return Format::from_float(Format::to_float(a) + Format::to_float(b)); }
  static Stored multiply(Stored a, Stored b) { return Format::from_float(Format::to_float(a) * Format::to_float(b)); }
  static Stored divide_by(Stored a, uint64_t divisor) {
    return Format::from_float(Format::to_float(a) / static_cast<float>(divisor));
  }
  static Stored minimum(Stored a, Stored b) { return pick(a, b, std::min(key(a), key(b))); }
  static Stored maximum(Stored a, Stored b) { return pick(a, b, std::max(key(a), key(b))); }

 private:
  static Signed key(Stored a) { return ordered(static_cast<Signed>(a)); }
  static Stored pick(Stored a, Stored b, Signed key) {
    const auto picked = static_cast<Stored>(ordered(key));
    return Format::is_nan(a) || Format::is_nan(b) ? static_cast<Stored>(Format::kQuietNan) : picked;
  }
};

template <class F>
struct Complex {
  struct Stored {
    F real, imaginary;
  };
  using Part = Floating<F>;
  static Stored add(Stored a, Stored b) { return {Part::add(a.real, b.real), Part::add(a.imaginary, b.imaginary)}; }
  // The plain formula, without the recovery of infinities of C's Annex G. Both sums commute because no product is fused
  // into them: the file is compiled with -ffp-contract=off.
  static Stored multiply(Stored a, Stored b) {
    return {Part::one_nan(a.real * b.real - a.imaginary * b.imaginary),
            Part::one_nan(a.real * b.imaginary + a.imaginary * b.real)};
  }
  static Stored divide_by(Stored a, uint64_t divisor) {
    return {Part::divide_by(a.real, divisor), Part::divide_by(a.imaginary, divisor)};
  }
};

}  // namespace backplane::core
