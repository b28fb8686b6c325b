// SPDX-License-Identifier: Apache-2.0
#include "collective.hpp"

#include <array>
#include <cmath>
#include <cstring>

namespace backplane::specimen {
namespace {

// A small float: sign, exponent, mantissa.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool infinities;  // false: OCP E4M3, where the last code alone is NaN
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t codes() const { return 1U << (exponent_bits + mantissa_bits); }  // of one sign
};

double decode(const Format& format, uint32_t code) {
  const double sign = (code & format.codes()) != 0 ? -1 : 1;
  const uint32_t magnitude = code & (format.codes() - 1);
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const uint32_t mantissa = magnitude & ((1U << format.mantissa_bits) - 1);
  const bool top = exponent == (1 << format.exponent_bits) - 1;
  if (format.infinities ? top && mantissa != 0 : magnitude == format.codes() - 1) return std::nan("");
  if (format.infinities && top) return sign * HUGE_VAL;
  const int shift = (exponent == 0 ? 1 : exponent) - format.bias() - format.mantissa_bits;
  return sign * std::ldexp(exponent == 0 ? mantissa : mantissa + (1U << format.mantissa_bits), shift);
}

// Rounds to nearest, ties to even. Too large values become infinity, or NaN in formats without infinity.
uint32_t encode(const Format& format, double value) {
  const uint32_t sign = std::signbit(value) ? format.codes() : 0;
  const uint32_t infinity =
      format.infinities ? ((1U << format.exponent_bits) - 1) << format.mantissa_bits : format.codes() - 1;
  if (std::isnan(value)) return sign | (format.infinities ? infinity | 1U << (format.mantissa_bits - 1) : infinity);
  if (std::isinf(value)) return sign | infinity;
  int exponent = value == 0 ? 1 - format.bias() : std::ilogb(value);
  if (exponent < 1 - format.bias()) exponent = 1 - format.bias();
  // The default rounding mode is to nearest even. A mantissa that overflows carries into the exponent.
  const double scaled = std::nearbyint(std::ldexp(std::fabs(value), format.mantissa_bits - exponent));
  const double code = std::ldexp(exponent - 1 + format.bias(), format.mantissa_bits) + scaled;  // with the hidden bit
  return code >= infinity ? sign | infinity : sign | static_cast<uint32_t>(code);
}

template <typename T, typename Change>
void change(void* data, uint64_t count, const Change& apply) {
  for (uint64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, static_cast<std::byte*>(data) + i * sizeof value, sizeof value);
    value = static_cast<T>(apply(value));
    std::memcpy(static_cast<std::byte*>(data) + i * sizeof value, &value, sizeof value);
  }
}

template <typename T>
void divide_plain(void* data, uint64_t count, int32_t divisor) {
  change<T>(data, count, [divisor](T value) { return value / static_cast<T>(divisor); });
}

template <typename Code>
void divide_small(void* data, uint64_t count, int32_t divisor, const Format& format) {
  change<Code>(data, count, [divisor, &format](Code code) { return encode(format, decode(format, code) / divisor); });
}

}  // namespace

const char* operation_name(uint32_t kind) {
  static constexpr std::array<const char*, BP_OP_COUNT> kNames = {
      "barrier",    "broadcast",   "reduce",     "all_reduce",  "gather",         "gatherv",
      "scatter",    "scatterv",    "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv",
      "all_to_all", "all_to_allv", "send",       "recv",        "scan",           "exscan"};
  return kind < kNames.size() ? kNames[kind] : "unknown operation";
}

void divide(uint32_t dtype, void* data, uint64_t count, int32_t divisor) {
  switch (dtype) {
    case BP_I8:
      return divide_plain<int8_t>(data, count, divisor);
    case BP_U8:
      return divide_plain<uint8_t>(data, count, divisor);
    case BP_I16:
      return divide_plain<int16_t>(data, count, divisor);
    case BP_U16:
      return divide_plain<uint16_t>(data, count, divisor);
    case BP_I32:
      return divide_plain<int32_t>(data, count, divisor);
    case BP_U32:
      return divide_plain<uint32_t>(data, count, divisor);
    case BP_I64:
      return divide_plain<int64_t>(data, count, divisor);
    case BP_U64:
      return divide_plain<uint64_t>(data, count, divisor);
    case BP_F16:
      return divide_small<uint16_t>(data, count, divisor, {5, 10, true});
    case BP_BF16:
      return divide_small<uint16_t>(data, count, divisor, {8, 7, true});
    case BP_F32:
      return divide_plain<float>(data, count, divisor);
    case BP_F64:
      return divide_plain<double>(data, count, divisor);
    case BP_F8E4M3:
      return divide_small<uint8_t>(data, count, divisor, {4, 3, false});
    case BP_F8E5M2:
      return divide_small<uint8_t>(data, count, divisor, {5, 2, true});
    case BP_C64:
      return divide_plain<float>(data, 2 * count, divisor);
    case BP_C128:
      return divide_plain<double>(data, 2 * count, divisor);
    default:
      return;  // there is no average of bool
  }
}

}  // namespace backplane::specimen
