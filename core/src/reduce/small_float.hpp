// SPDX-License-Identifier: Apache-2.0
//
// Floating-point formats that C++20 lacks, and their conversion to and from f32.
//
// The conversion to f32 is exact. The conversion from f32 rounds to nearest, ties to even. A result that is too large
// becomes infinity or, in f8e4m3, which has no infinity, NaN: the non-saturating mode of the OCP 8-bit floating point
// specification 1.0, section 5.2 (448 to 464 give 448, larger numbers NaN). Every NaN becomes the quiet NaN of the
// format, sign clear.
//
// The conversions are inlined and without branches, so that loops over them vectorise, and without subnormal f32
// values, so that programs that flush subnormals to zero get the same bits (after F. Giesen, "Half to float done
// quickly" and float_to_half_fast3_rtne, 2012). avx2_float.hpp has vectorised versions.
#pragma once

#include <bit>
#include <cstdint>

namespace backplane::core {

// 1 sign bit, kExponentBits, kMantissaBits, bias 2^(kExponentBits - 1) - 1.
template <class BitsType, int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct SmallFloat {
  using Bits = BitsType;
  // Signed, because SSE2 compares only signed integers. No value uses bit 31.
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int32_t kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int32_t kSign = 1 << (kExponentBits + kMantissaBits);
  static constexpr int32_t kMagnitude = kSign - 1;
  static constexpr int32_t kInfinity = ((1 << kExponentBits) - 1) << kMantissaBits;  // if kHasInfinity
  static constexpr int32_t kLargestNumber = kHasInfinity ? kInfinity : kMagnitude - 1;
  static constexpr int32_t kQuietNan = kHasInfinity ? kInfinity | 1 << (kMantissaBits - 1) : kMagnitude;

  static constexpr bool is_nan(Bits bits) { return (bits & kMagnitude) > kLargestNumber; }

  [[gnu::always_inline]] static float to_float(Bits bits) {
    const int32_t magnitude = bits & kMagnitude;
    // With the new bias a subnormal gets an implicit leading one, which is subtracted.
    constexpr int32_t kLeadingOne = (127 - kBias + 1) << 23;
    const int32_t normal = (magnitude << kShift) + ((127 - kBias) << 23);
    const int32_t subnormal = std::bit_cast<int32_t>(std::bit_cast<float>((magnitude << kShift) + kLeadingOne) -
                                                     std::bit_cast<float>(kLeadingOne));
    int32_t result = magnitude < (1 << kMantissaBits) ? subnormal : normal;
    if constexpr (kHasInfinity) result = magnitude == kInfinity ? 0x7F800000 : result;
    result = magnitude > kLargestNumber ? 0x7FC00000 : result;
    const uint32_t sign = static_cast<uint32_t>(bits & kSign) << (31 - kExponentBits - kMantissaBits);
    return std::bit_cast<float>(static_cast<uint32_t>(result) | sign);
  }

  [[gnu::always_inline]] static Bits from_float(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const auto magnitude = static_cast<int32_t>(bits & 0x7FFFFFFFu);
    // Adding a number whose last bit is the smallest subnormal of the format makes the hardware round.
    constexpr int32_t kRounder = (127 - kBias + kShift + 1) << 23;
    const int32_t subnormal =
        std::bit_cast<int32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kRounder)) - kRounder;
    const int32_t odd = (magnitude >> kShift) & 1;
    const int32_t normal = (magnitude - ((127 - kBias) << 23) + ((1 << (kShift - 1)) - 1) + odd) >> kShift;
    int32_t result = magnitude < ((127 - kBias + 1) << 23) ? subnormal : normal;
    // Also for the infinity of f32.
    constexpr int32_t kOverflow = kHasInfinity ? kInfinity : kQuietNan;
    result = result > kLargestNumber ? kOverflow : result;
    // A NaN has no sign.
    const auto sign = static_cast<int32_t>((bits >> 31) << (kExponentBits + kMantissaBits));
    const bool becomes_nan = kHasInfinity ? magnitude > 0x7F800000 : result == kQuietNan;
    return static_cast<Bits>(becomes_nan ? kQuietNan : result | sign);
  }
};

using F16 = SmallFloat<uint16_t, 5, 10, true>;
using F8E4M3 = SmallFloat<uint8_t, 4, 3, false>;
using F8E5M2 = SmallFloat<uint8_t, 5, 2, true>;

// bfloat16 is the upper half of f32, including subnormals.
struct BF16 {
  using Bits = uint16_t;
  static constexpr uint32_t kSign = 0x8000;
  static constexpr uint32_t kMagnitude = 0x7FFF;
  static constexpr uint32_t kQuietNan = 0x7FC0;

  static constexpr bool is_nan(Bits bits) { return (bits & kMagnitude) > 0x7F80u; }
  [[gnu::always_inline]] static float to_float(Bits bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  [[gnu::always_inline]] static Bits from_float(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16;
    return static_cast<Bits>((bits & 0x7FFFFFFFu) > 0x7F800000u ? kQuietNan : rounded);
  }
};

}  // namespace backplane::core
