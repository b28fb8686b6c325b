// SPDX-License-Identifier: Apache-2.0
//
// The small floats against a definition in double arithmetic: every value, and numbers around every value and every
// midpoint between adjacent values.
#include "reduce/small_float.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace backplane::core {
namespace {

template <class FormatType, int kExponent, int kMantissa, bool kInfinity>
struct Definition {
  using Format = FormatType;
  static constexpr uint32_t kCount = 1u << (1 + kExponent + kMantissa);
  static constexpr bool kHasInfinity = kInfinity;

  static double value(uint32_t bits) {
    const uint32_t fraction = bits & ((1u << kMantissa) - 1);
    const uint32_t exponent = (bits >> kMantissa) & ((1u << kExponent) - 1);
    const double sign = bits >= kCount / 2 ? -1 : 1;
    const bool last = exponent == (1u << kExponent) - 1;
    if (kInfinity && last)
      return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    if (!kInfinity && last && fraction == (1u << kMantissa) - 1) return std::numeric_limits<double>::quiet_NaN();
    const int bias = (1 << (kExponent - 1)) - 1;
    const double significand = fraction / static_cast<double>(1u << kMantissa) + (exponent == 0 ? 0 : 1);
    return sign * std::ldexp(significand, static_cast<int>(exponent == 0 ? 1 : exponent) - bias);
  }
};

template <class Tested>
class SmallFloatFormat : public ::testing::Test {};
using Formats = ::testing::Types<Definition<F16, 5, 10, true>, Definition<BF16, 8, 7, true>,
                                 Definition<F8E4M3, 4, 3, false>, Definition<F8E5M2, 5, 2, true>>;
TYPED_TEST_SUITE(SmallFloatFormat, Formats);

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

TYPED_TEST(SmallFloatFormat, ToFloatIsExact) {
  using Format = typename TypeParam::Format;
  for (uint32_t bits = 0; bits < TypeParam::kCount; ++bits) {
    const double expected = TypeParam::value(bits);
    const float found = Format::to_float(static_cast<typename Format::Bits>(bits));
    ASSERT_EQ(std::isnan(expected), Format::is_nan(static_cast<typename Format::Bits>(bits))) << bits;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(found)) << bits;
    } else {
      ASSERT_EQ(bits_of(found), bits_of(static_cast<float>(expected))) << bits;
    }
  }
}

TYPED_TEST(SmallFloatFormat, RoundTripsThroughFloat) {
  using Format = typename TypeParam::Format;
  for (uint32_t bits = 0; bits < TypeParam::kCount; ++bits) {
    const auto stored = static_cast<typename Format::Bits>(bits);
    ASSERT_EQ(Format::from_float(Format::to_float(stored)), Format::is_nan(stored) ? Format::kQuietNan : bits);
  }
}

// The nearest number, ties to even. Beyond the largest number, as if the next larger one existed.
template <class Tested>
uint32_t rounded(double value) {
  const uint32_t sign = std::signbit(value) ? Tested::kCount / 2 : 0;
  const double magnitude = std::fabs(value);
  uint32_t largest = Tested::kCount / 2 - 1;
  while (!std::isfinite(Tested::value(largest))) --largest;
  if (magnitude > Tested::value(largest)) {
    const double step = Tested::value(largest) - Tested::value(largest - 1);
    const double middle = Tested::value(largest) + step / 2;
    const bool rounds_down = magnitude < middle || (magnitude == middle && largest % 2 == 0);
    if (rounds_down) return sign | largest;
    return Tested::kHasInfinity ? sign | (largest + 1) : Tested::Format::kQuietNan;
  }
  uint32_t below = 0, above = largest;  // by bisection: value(below) <= magnitude <= value(above)
  while (above - below > 1) {
    const uint32_t middle = (above + below) / 2;
    (Tested::value(middle) <= magnitude ? below : above) = middle;
  }
  const double down = magnitude - Tested::value(below), up = Tested::value(above) - magnitude;
  if (down != up) return sign | (down < up ? below : above);
  return sign | (below % 2 == 0 ? below : above);
}

template <class Tested>
void expect_rounded(float value) {
  if (std::isnan(value)) return;
  ASSERT_EQ(Tested::Format::from_float(value), rounded<Tested>(value)) << std::hexfloat << value;
}

TYPED_TEST(SmallFloatFormat, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < TypeParam::kCount; ++bits) {
    const auto value = static_cast<float>(TypeParam::value(bits));
    const auto next = static_cast<float>(TypeParam::value(bits + 1 == TypeParam::kCount ? bits : bits + 1));
    for (const float at : {value, value / 2 + next / 2})
      for (const float toward : {-std::numeric_limits<float>::infinity(), at, std::numeric_limits<float>::infinity()})
        expect_rounded<TypeParam>(std::nextafter(at, toward));
    if (::testing::Test::HasFatalFailure()) return;
  }
  // Samples of all f32, with a step without a pattern in its low bits.
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 65521 * 3) {
    expect_rounded<TypeParam>(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TYPED_TEST(SmallFloatFormat, HasOneQuietNan) {
  using Format = typename TypeParam::Format;
  for (const uint32_t nan : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu, 0x7F80FFFFu})
    EXPECT_EQ(Format::from_float(std::bit_cast<float>(nan)), Format::kQuietNan) << nan;
}

TEST(SmallFloat, OverflowIsInfinityOrNan) {
  EXPECT_EQ(F16::from_float(65519.0f), 0x7BFF);
  EXPECT_EQ(F16::from_float(65520.0f), 0x7C00);
  EXPECT_EQ(F16::from_float(-1e30f), 0xFC00);
  EXPECT_EQ(F8E5M2::from_float(61440.0f), 0x7C);
  EXPECT_EQ(F8E4M3::from_float(464.0f), 0x7E);
  for (const float large : {464.1f, 480.0f, 500.0f, 512.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(F8E4M3::from_float(large), 0x7F) << large;
    EXPECT_EQ(F8E4M3::from_float(-large), 0x7F) << large;
  }
}

}  // namespace
}  // namespace backplane::core
