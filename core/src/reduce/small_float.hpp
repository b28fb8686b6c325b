// SPDX-License-Identifier: Apache-2.0
//
// The floating-point types that C++20 has no name for, as formats of bits, and their conversion to and from f32.
//
// To f32 is exact. From f32 rounds to nearest, ties to even. What is too large after rounding becomes infinity, or in
// f8e4m3, which has none, NaN: the non-saturating mode of the OCP 8-bit floating point specification 1.0, section 5.2
// (so 448 to 464 give 448, above that NaN). Every NaN becomes the format's one quiet NaN, sign clear.
//
// Without branches, so that loops over it vectorise, and without subnormal f32 values, so that a program that flushes
// those to zero gets the same bits (after F. Giesen, "Half to float done quickly" and float_to_half_fast3_rtne, 2012).
#pragma once

#include <bit>
#include <cstdint>

namespace backplane::core {

// 1 sign bit, kExponentBits, kMantissaBits, bias 2^(kExponentBits - 1) - 1.
template <class BitsType, int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct SmallFloat {
  using Bits = BitsType;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kSign = 1u << (kExponentBits + kMantissaBits);
  static constexpr uint32_t kMagnitude = kSign - 1;
  static constexpr uint32_t kInfinity = ((1u << kExponentBits) - 1) << kMantissaBits;  // if it has one
  static constexpr uint32_t kLargestNumber = kHasInfinity ? kInfinity : kMagnitude - 1;
  static constexpr uint32_t kQuietNan = kHasInfinity ? kInfinity | 1u << (kMantissaBits - 1) : kMagnitude;

  static constexpr bool is_nan(Bits bits) { return (bits & kMagnitude) > kLargestNumber; }

  static float to_float(Bits bits) {
    const uint32_t magnitude = bits & kMagnitude;
    // With the exponent rebased a subnormal has a leading one too many: subtract it.
    constexpr uint32_t kLeadingOne = (127 - kBias + 1) << 23;
    const uint32_t normal = (magnitude << kShift) + ((127 - kBias) << 23);
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>((magnitude << kShift) + kLeadingOne) -
                                                       std::bit_cast<float>(kLeadingOne));
    uint32_t result = magnitude < (1u << kMantissaBits) ? subnormal : normal;
    result = kHasInfinity && magnitude == kInfinity ? 0x7F800000u : result;
    result |= static_cast<uint32_t>(bits & kSign) << (31 - kExponentBits - kMantissaBits);
    result = magnitude > kLargestNumber ? 0x7FC00000u : result;
    return std::bit_cast<float>(result);
  }

  static Bits from_float(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t sign = (bits >> 31) << (kExponentBits + kMantissaBits);
    // Adding a number whose last bit is the format's smallest subnormal lets the hardware round.
    constexpr uint32_t kRounder = (127 - kBias + static_cast<uint32_t>(kShift) + 1) << 23;
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kRounder)) - kRounder;
    const uint32_t odd = (magnitude >> kShift) & 1;
    const uint32_t normal = (magnitude - ((127 - kBias) << 23) + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    uint32_t result = magnitude < ((127 - kBias + 1) << 23) ? subnormal : normal;
    // From kTooLarge on the rebased exponent has no room; below it rounding may still step over the largest number.
    constexpr uint32_t kTooLarge = (127 + kBias + (kHasInfinity ? 1 : 2)) << 23;
    constexpr uint32_t kOverflow = kHasInfinity ? kInfinity : kQuietNan;
    result = magnitude >= kTooLarge || result > kLargestNumber ? kOverflow : result;
    result |= sign;
    result = magnitude > 0x7F800000u || (result & kMagnitude) > kLargestNumber ? kQuietNan : result;
    return static_cast<Bits>(result);
  }
};

using F16 = SmallFloat<uint16_t, 5, 10, true>;
using F8E4M3 = SmallFloat<uint8_t, 4, 3, false>;
using F8E5M2 = SmallFloat<uint8_t, 5, 2, true>;

// bfloat16 is the upper half of f32, subnormals included.
struct BF16 {
  using Bits = uint16_t;
  static constexpr uint32_t kSign = 0x8000;
  static constexpr uint32_t kMagnitude = 0x7FFF;
  static constexpr uint32_t kQuietNan = 0x7FC0;

  static constexpr bool is_nan(Bits bits) { return (bits & kMagnitude) > 0x7F80u; }
  static float to_float(Bits bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static Bits from_float(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16;
    return static_cast<Bits>((bits & 0x7FFFFFFFu) > 0x7F800000u ? kQuietNan : rounded);
  }
};

}  // namespace backplane::core
