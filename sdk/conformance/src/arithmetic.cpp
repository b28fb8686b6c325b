// SPDX-License-Identifier: Apache-2.0
//
// Written from types.h alone, so that it shares no fault with the core's reductions. Floating types of 8 and 16 bits
// are computed in double and rounded once. Double rounding has no effect, because double has more than twice their
// digits.
#include "arithmetic.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

#include "backplane/abi/status.h"
#include "backplane/abi/types.h"

namespace backplane::conformance {
namespace {

// A small floating-point format: the number of exponent and mantissa bits, and whether the largest exponent encodes
// infinity and NaN (as in IEEE 754), or NaN only with the largest mantissa (E4M3).
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool ieee;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t largest_exponent() const { return (1U << exponent_bits) - 1; }
  uint32_t largest_mantissa() const { return (1U << mantissa_bits) - 1; }
  uint32_t sign_bit() const { return 1U << (exponent_bits + mantissa_bits); }
  uint32_t nan() const {
    const uint32_t infinity = largest_exponent() << mantissa_bits;
    return infinity | (ieee ? 1U << (mantissa_bits - 1) : largest_mantissa());
  }
};

double decode(const Format& format, uint32_t bits) {
  const uint32_t mantissa = bits & format.largest_mantissa();
  const uint32_t exponent = (bits >> format.mantissa_bits) & format.largest_exponent();
  const double sign = (bits & format.sign_bit()) != 0 ? -1.0 : 1.0;
  if (exponent == format.largest_exponent()) {
    if (format.ieee && mantissa == 0) return sign * std::numeric_limits<double>::infinity();
    if (format.ieee || mantissa == format.largest_mantissa()) return std::numeric_limits<double>::quiet_NaN();
  }
  const int scale = 1 - format.bias() - format.mantissa_bits;  // of the last digit of subnormal numbers
  if (exponent == 0) return sign * std::ldexp(mantissa, scale);
  const double digits = mantissa + format.largest_mantissa() + 1;
  return sign * std::ldexp(digits, scale + static_cast<int>(exponent) - 1);
}

// Rounds to nearest, ties to even. Overflow becomes infinity, or NaN in a format that has none.
uint32_t encode(const Format& format, double value) {
  if (std::isnan(value)) return format.nan();
  const uint32_t sign = std::signbit(value) ? format.sign_bit() : 0;
  const uint32_t infinity = format.largest_exponent() << format.mantissa_bits;
  const uint32_t overflow = format.ieee ? sign | infinity : format.nan();
  if (std::isinf(value)) return overflow;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  int exponent = std::ilogb(magnitude);
  exponent = std::max(exponent, 1 - format.bias());
  // The value in units of the last digit. nearbyint uses the current rounding mode, which is the default one.
  const double digits = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  // Subnormal numbers have exponent field 0 and no leading one. A carry into the leading one increments the field.
  const double field = digits + static_cast<double>((exponent + format.bias() - 1)) * (1 << format.mantissa_bits);
  const uint32_t largest = format.ieee ? infinity - 1 : format.nan() - 1;
  return field > largest ? overflow : sign | static_cast<uint32_t>(field);
}

template <typename T>
T load(const void* data, uint64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void store(void* data, uint64_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

// The kinds of elements. Value is the type of computations.
template <typename T>
struct Plain {
  using Value = T;
  static T get(const void* data, uint64_t i) { return load<T>(data, i); }
  static void put(void* data, uint64_t i, T value) { store(data, i, value); }
};
struct Bool {
  using Value = bool;
  static bool get(const void* data, uint64_t i) { return load<uint8_t>(data, i) != 0; }
  static void put(void* data, uint64_t i, bool value) { store(data, i, static_cast<uint8_t>(value ? 1 : 0)); }
};
template <typename Bits, int kExponentBits, int kMantissaBits, bool kIeee>
struct Small {
  using Value = double;
  static constexpr Format kFormat{kExponentBits, kMantissaBits, kIeee};
  static double get(const void* data, uint64_t i) { return decode(kFormat, load<Bits>(data, i)); }
  static void put(void* data, uint64_t i, double value) { store(data, i, static_cast<Bits>(encode(kFormat, value))); }
};
template <typename T>
struct Complex {
  using Value = std::complex<T>;
  static Value get(const void* data, uint64_t i) { return load<Value>(data, i); }
  static void put(void* data, uint64_t i, Value value) { store(data, i, value); }
};

// Calls function(Element{}) for the dtype; false if there is no such dtype.
template <typename Function>
bool with_element(uint32_t dtype, const Function& function) {
  switch (dtype) {
    case BP_BOOL:
      return function(Bool{}), true;
    case BP_I8:
      return function(Plain<int8_t>{}), true;
    case BP_U8:
      return function(Plain<uint8_t>{}), true;
    case BP_I16:
      return function(Plain<int16_t>{}), true;
    case BP_U16:
      return function(Plain<uint16_t>{}), true;
    case BP_I32:
      return function(Plain<int32_t>{}), true;
    case BP_U32:
      return function(Plain<uint32_t>{}), true;
    case BP_I64:
      return function(Plain<int64_t>{}), true;
    case BP_U64:
      return function(Plain<uint64_t>{}), true;
    case BP_F16:
      return function(Small<uint16_t, 5, 10, true>{}), true;
    case BP_BF16:
      return function(Small<uint16_t, 8, 7, true>{}), true;
    case BP_F32:
      return function(Plain<float>{}), true;
    case BP_F64:
      return function(Plain<double>{}), true;
    case BP_F8E4M3:
      return function(Small<uint8_t, 4, 3, false>{}), true;
    case BP_F8E5M2:
      return function(Small<uint8_t, 5, 2, true>{}), true;
    case BP_C64:
      return function(Complex<float>{}), true;
    case BP_C128:
      return function(Complex<double>{}), true;
    default:
      return false;
  }
}

// Wraps: computes in 64 unsigned bits, then truncates.
template <typename T>
T wrapped(uint64_t value) {
  return static_cast<T>(static_cast<std::make_unsigned_t<T>>(value));
}

template <typename T>
T product(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a && b;
  } else if constexpr (std::is_integral_v<T>) {
    return wrapped<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else if constexpr (std::is_floating_point_v<T>) {
    return a * b;
  } else {  // without C's recovery of infinities
    return T(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  }
}

template <typename T>
T sum(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<T>) {
    return wrapped<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

// min if `least`, else max. The negative zero is less than the positive one.
template <typename T>
T extreme(T a, T b, bool least) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) == least ? a : b;
  }
  return (a < b) == least ? a : b;
}

template <typename T>
T bits(T a, T b, uint32_t reduce_op) {
  if constexpr (std::is_same_v<T, bool>) {
    return reduce_op == BP_BAND ? a && b : (reduce_op == BP_BOR ? a || b : a != b);
  } else {
    const auto x = static_cast<uint64_t>(a);
    const auto y = static_cast<uint64_t>(b);
    return wrapped<T>(reduce_op == BP_BAND ? x & y : (reduce_op == BP_BOR ? x | y : x ^ y));
  }
}

template <typename T>
T combined(T a, T b, uint32_t reduce_op) {
  constexpr bool kComplex = !std::is_arithmetic_v<T>;
  if (reduce_op == BP_PROD) return product(a, b);
  if constexpr (!kComplex) {
    if (reduce_op == BP_MIN) return extreme(a, b, true);
    if (reduce_op == BP_MAX) return extreme(a, b, false);
  }
  if constexpr (std::is_integral_v<T>) {
    if (reduce_op == BP_BAND || reduce_op == BP_BOR || reduce_op == BP_BXOR) return bits(a, b, reduce_op);
  }
  return sum(a, b);  // also avg and premul_sum
}

template <typename T>
T quotient(T a, uint64_t divisor) {
  if constexpr (std::is_same_v<T, bool>) {
    return a;
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    const uint64_t magnitude = a < 0 ? uint64_t{0} - static_cast<uint64_t>(a) : static_cast<uint64_t>(a);
    return wrapped<T>(a < 0 ? uint64_t{0} - magnitude / divisor : magnitude / divisor);  // rounded toward zero
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) / divisor);
  } else if constexpr (std::is_floating_point_v<T>) {
    return a / static_cast<T>(divisor);
  } else {
    return T(a.real() / static_cast<typename T::value_type>(divisor),
             a.imag() / static_cast<typename T::value_type>(divisor));
  }
}

// Modulo 2^64, rounded toward zero.
uint64_t wrapped_integer(double value) {
  if (!std::isfinite(value)) return 0;
  constexpr double kModulus = 18446744073709551616.0;
  const double magnitude = std::fmod(std::trunc(std::fabs(value)), kModulus);
  const auto integer = static_cast<uint64_t>(magnitude);
  return value < 0 ? uint64_t{0} - integer : integer;
}

}  // namespace

bool goes_together(uint32_t dtype, uint32_t reduce_op) {
  if (dtype >= BP_DTYPE_COUNT || reduce_op >= BP_REDUCE_OP_COUNT) return false;
  const bool complex = dtype == BP_C64 || dtype == BP_C128;
  const bool integer = dtype <= BP_U64;  // includes bool
  switch (reduce_op) {
    case BP_MIN:
    case BP_MAX:
      return !complex;
    case BP_AVG:
      return dtype != BP_BOOL;
    case BP_BAND:
    case BP_BOR:
    case BP_BXOR:
      return integer;
    default:
      return true;
  }
}

int32_t combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right, uint64_t count) {
  if (!goes_together(dtype, reduce_op)) return BP_INVALID;
  with_element(dtype, [=](auto element) {
    using Element = decltype(element);
    for (uint64_t i = 0; i < count; ++i) {
      Element::put(out, i, combined(Element::get(left, i), Element::get(right, i), reduce_op));
    }
  });
  return BP_OK;
}

void divide(uint32_t dtype, void* data, uint64_t count, uint64_t divisor) {
  with_element(dtype, [=](auto element) {
    using Element = decltype(element);
    for (uint64_t i = 0; i < count; ++i) Element::put(data, i, quotient(Element::get(data, i), divisor));
  });
}

void multiply(uint32_t dtype, void* data, uint64_t count, const void* factor) {
  with_element(dtype, [=](auto element) {
    using Element = decltype(element);
    const auto by = Element::get(factor, 0);
    for (uint64_t i = 0; i < count; ++i) Element::put(data, i, product(Element::get(data, i), by));
  });
}

namespace {
// Small floats are in f32 between the steps of a reduction.
template <typename Element, typename Value>
Value after_step(Value value) {
  if constexpr (requires { Element::kFormat; }) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}
}  // namespace

void reduce(uint32_t dtype, uint32_t reduce_op, void* out, const void* const* inputs, const void* const* scalars,
            uint64_t inputs_count, uint64_t divisor, uint64_t count) {
  with_element(dtype, [=](auto element) {
    using Element = decltype(element);
    for (uint64_t i = 0; i < count; ++i) {
      auto result = Element::get(inputs[0], i);
      for (uint64_t k = 0; k < inputs_count; ++k) {
        auto value = Element::get(inputs[k], i);
        if (scalars != nullptr && scalars[k] != nullptr) {
          value = after_step<Element>(product(value, Element::get(scalars[k], 0)));
        }
        result = k == 0 ? value : after_step<Element>(combined(result, value, reduce_op));
      }
      Element::put(out, i, reduce_op == BP_AVG ? after_step<Element>(quotient(result, divisor)) : result);
    }
  });
}

double as_double(uint32_t dtype, const void* data, uint64_t i) {
  double number = 0;
  with_element(dtype, [&number, data, i](auto element) {
    const auto value = decltype(element)::get(data, i);
    if constexpr (std::is_arithmetic_v<decltype(element.get(data, i))>) {
      number = static_cast<double>(value);
    } else {
      number = static_cast<double>(value.real());
    }
  });
  return number;
}

void from_double(uint32_t dtype, void* data, uint64_t i, double value) {
  with_element(dtype, [data, i, value](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    if constexpr (std::is_same_v<Value, bool>) {
      Element::put(data, i, value != 0);
    } else if constexpr (std::is_integral_v<Value>) {
      Element::put(data, i, wrapped<Value>(wrapped_integer(value)));
    } else if constexpr (std::is_floating_point_v<Value>) {
      Element::put(data, i, static_cast<Value>(value));
    } else {
      Element::put(data, i, Value(static_cast<typename Value::value_type>(value), 0));
    }
  });
}

double epsilon(uint32_t dtype) {
  switch (dtype) {
    case BP_F16:
      return 0x1p-10;
    case BP_BF16:
      return 0x1p-7;
    case BP_F32:
    case BP_C64:
      return 0x1p-23;
    case BP_F64:
    case BP_C128:
      return 0x1p-52;
    case BP_F8E4M3:
      return 0x1p-3;
    case BP_F8E5M2:
      return 0x1p-2;
    default:
      return 0;
  }
}

}  // namespace backplane::conformance
