// SPDX-License-Identifier: Apache-2.0
//
// All dtypes and reduce operations against references in wider arithmetic.
#include "reduce/combine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "reduce/small_float.hpp"

namespace backplane::core {
namespace {

using Bytes = std::vector<unsigned char>;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

bool is_bool_or_integer(uint32_t dtype) { return dtype <= BP_U64; }

// Random bits are numbers of all sizes, infinities and, in the small formats, often NaN. In the wide formats, every
// fourth element is set to a special value.
Bytes random_elements(uint32_t dtype, uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * dtype_size(dtype));
  for (auto& byte : bytes) byte = static_cast<unsigned char>(dtype == BP_BOOL ? random() & 1 : random());
  const uint32_t specials32[] = {0x7FC00001, 0xFFC12345, 0x7F800001, 0, 0x80000000, 0x7F800000, 0xFF800000, 1};
  for (uint64_t i = 0; i < bytes.size() / 4 && !is_bool_or_integer(dtype); i += 4) {
    const uint32_t special = specials32[random() % 8];
    if (dtype == BP_F32 || dtype == BP_C64) std::memcpy(&bytes[4 * i], &special, 4);
    const uint64_t special64 =
        (uint64_t{special & 0xFFF00000} << 32) | (special & 0xFFFFF);  // maps NaN, 0 and infinity likewise
    if (dtype == BP_F64 || dtype == BP_C128) std::memcpy(&bytes[4 * i], &special64, 8);
  }
  return bytes;
}

Bytes combined(uint32_t dtype, uint32_t op, const Bytes& left, const Bytes& right) {
  Bytes out(left.size());
  combine(dtype, op, out.data(), left.data(), right.data(), left.size() / dtype_size(dtype));
  return out;
}

std::vector<std::pair<uint32_t, uint32_t>> all_pairs() {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype)
    for (uint32_t op = 0; op < BP_REDUCE_OP_COUNT; ++op)
      if (reducible(dtype, op)) pairs.emplace_back(dtype, op);
  return pairs;
}

TEST(Combine, GivesTheSameBitsInEitherOrder) {
  for (const auto& [dtype, op] : all_pairs()) {
    const Bytes left = random_elements(dtype, 20000, 1), right = random_elements(dtype, 20000, 2);
    EXPECT_EQ(combined(dtype, op, left, right), combined(dtype, op, right, left))
        << dtype_name(dtype) << " " << reduce_op_name(op);
  }
}

TEST(Combine, GivesTheSameBitsAsThePortableFunction) {
  for (const auto& [dtype, op] : all_pairs()) {
    const Bytes left = random_elements(dtype, 1003, 5), right = random_elements(dtype, 1003, 6);
    Bytes plain(left.size());
    combine_portable(dtype, op, plain.data(), left.data(), right.data(), 1003);
    EXPECT_EQ(combined(dtype, op, left, right), plain) << dtype_name(dtype) << " " << reduce_op_name(op);
    Bytes in_place = left;
    combine(dtype, op, in_place.data(), in_place.data(), right.data(), 1003);
    EXPECT_EQ(in_place, plain) << dtype_name(dtype) << " " << reduce_op_name(op);
  }
}

TEST(Combine, GivesTheSameBitsInPlaceAndUnaligned) {
  for (const auto& [dtype, op] : all_pairs())
    for (const uint64_t count : {0u, 1u, 3u, 17u, 1000u}) {
      const Bytes left = random_elements(dtype, count, 3), right = random_elements(dtype, count, 4);
      const Bytes expected = combined(dtype, op, left, right);
      Bytes on_left = left, on_right = right;
      combine(dtype, op, on_left.data(), on_left.data(), right.data(), count);
      combine(dtype, op, on_right.data(), left.data(), on_right.data(), count);
      EXPECT_EQ(on_left, expected) << dtype_name(dtype) << " " << reduce_op_name(op);
      EXPECT_EQ(on_right, expected) << dtype_name(dtype) << " " << reduce_op_name(op);
      Bytes shifted(left.size() + 1);
      std::copy(left.begin(), left.end(), shifted.begin() + 1);
      combine(dtype, op, shifted.data() + 1, shifted.data() + 1, right.data(), count);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), shifted.begin() + 1));
    }
}

// Wide enough for the sum and the product of any two i64 or u64.
__extension__ using Wide = __int128;

template <class T>
T integer_reference(uint32_t op, T a, T b) {
  switch (op) {
    case BP_PROD:
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case BP_MIN:
      return std::min(a, b);
    case BP_MAX:
      return std::max(a, b);
    case BP_BAND:
      return static_cast<T>(a & b);
    case BP_BOR:
      return static_cast<T>(a | b);
    case BP_BXOR:
      return static_cast<T>(a ^ b);
    default:
      return static_cast<T>(static_cast<uint64_t>(Wide{a} + Wide{b}));
  }
}

template <class T>
void check_integer(uint32_t dtype) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> left = values_of<T>(random_elements(dtype, 5000, 5)),
                 right = values_of<T>(random_elements(dtype, 5000, 6));
  const T edges[] = {Limits::min(), Limits::max(), T{0}, T{1}, static_cast<T>(-1)};
  for (const T a : edges)
    for (const T b : edges) left.push_back(a), right.push_back(b);
  for (uint32_t op = 0; op < BP_REDUCE_OP_COUNT; ++op) {
    ASSERT_TRUE(reducible(dtype, op));
    const auto found = values_of<T>(combined(dtype, op, bytes_of(left), bytes_of(right)));
    for (size_t i = 0; i < left.size(); ++i) ASSERT_EQ(found[i], integer_reference<T>(op, left[i], right[i])) << op;
  }
  for (const uint64_t divisor :
       {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{128}, uint64_t{1000}, uint64_t{1} << 31, uint64_t{1} << 63}) {
    auto found = left;
    divide(dtype, found.data(), divisor, found.size());
    for (size_t i = 0; i < left.size(); ++i)
      ASSERT_EQ(Wide{found[i]}, Wide{left[i]} / static_cast<Wide>(divisor)) << divisor;
  }
  std::vector<T> found(left.size());
  multiply(dtype, found.data(), left.data(), &right[0], left.size());
  for (size_t i = 0; i < left.size(); ++i) ASSERT_EQ(found[i], integer_reference<T>(BP_PROD, left[i], right[0]));
}

TEST(Combine, IsWrappingArithmeticOnIntegers) {
  check_integer<int8_t>(BP_I8);
  check_integer<uint8_t>(BP_U8);
  check_integer<int16_t>(BP_I16);
  check_integer<uint16_t>(BP_U16);
  check_integer<int32_t>(BP_I32);
  check_integer<uint32_t>(BP_U32);
  check_integer<int64_t>(BP_I64);
  check_integer<uint64_t>(BP_U64);
}

TEST(Combine, IsLogicOnBool) {
  const Bytes left = {0, 0, 1, 1}, right = {0, 1, 0, 1}, either = {0, 1, 1, 1}, both = {0, 0, 0, 1};
  for (const uint32_t op : {BP_SUM, BP_MAX, BP_BOR, BP_PREMUL_SUM})
    EXPECT_EQ(combined(BP_BOOL, op, left, right), either) << reduce_op_name(op);
  for (const uint32_t op : {BP_PROD, BP_MIN, BP_BAND})
    EXPECT_EQ(combined(BP_BOOL, op, left, right), both) << reduce_op_name(op);
  EXPECT_EQ(combined(BP_BOOL, BP_BXOR, left, right), (Bytes{0, 1, 1, 0}));
  const Bytes no = {0};
  Bytes out(4);
  multiply(BP_BOOL, out.data(), right.data(), no.data(), 4);
  EXPECT_EQ(out, Bytes(4, 0));
}

// Reads numbers of an element type, and rounds results that were computed in more precision.
template <class F>
struct Native {
  using Bits = std::conditional_t<sizeof(F) == 4, uint32_t, uint64_t>;
  static long double value(Bits bits) { return std::bit_cast<F>(bits); }
  static Bits round(long double value) { return std::bit_cast<Bits>(static_cast<F>(value)); }
  static constexpr Bits kNan = std::bit_cast<Bits>(std::numeric_limits<F>::quiet_NaN());
};
// Sums and products of two small floats are rounded to f32 first, which does not change the result (Figueroa, "When is
// double rounding innocuous?", 1995).
template <class Format>
struct Small {
  using Bits = typename Format::Bits;
  static long double value(Bits bits) { return Format::to_float(bits); }
  static Bits round(long double value) { return Format::from_float(static_cast<float>(value)); }
  static constexpr Bits kNan = static_cast<Bits>(Format::kQuietNan);
};

template <class Type>
typename Type::Bits float_reference(uint32_t op, typename Type::Bits left, typename Type::Bits right) {
  const long double a = Type::value(left), b = Type::value(right);
  if (std::isnan(a) || std::isnan(b)) return Type::kNan;
  long double result = a + b;
  if (op == BP_PROD) result = a * b;
  if (op == BP_MIN || op == BP_MAX) {
    const bool left_is_less = a < b || (a == b && std::signbit(a));
    return left_is_less == (op == BP_MIN) ? left : right;
  }
  return std::isnan(result) ? Type::kNan : Type::round(result);
}

template <class Type>
void check_floats(uint32_t dtype, const Bytes& left_bytes, const Bytes& right_bytes) {
  using Bits = typename Type::Bits;
  const auto left = values_of<Bits>(left_bytes), right = values_of<Bits>(right_bytes);
  for (const uint32_t op : {BP_SUM, BP_PROD, BP_MIN, BP_MAX, BP_AVG, BP_PREMUL_SUM}) {
    ASSERT_TRUE(reducible(dtype, op));
    const auto found = values_of<Bits>(combined(dtype, op, left_bytes, right_bytes));
    for (size_t i = 0; i < left.size(); ++i)
      ASSERT_EQ(found[i], (float_reference<Type>(op, left[i], right[i])))
          << dtype_name(dtype) << " " << reduce_op_name(op) << " " << left[i] << " " << right[i];
  }
  auto found = left;
  divide(dtype, found.data(), 3, found.size());
  for (size_t i = 0; i < left.size(); ++i) {
    const long double value = Type::value(left[i]);
    ASSERT_EQ(found[i], std::isnan(value) ? Type::kNan : Type::round(value / 3)) << left[i];
  }
  multiply(dtype, found.data(), left.data(), &right[0], left.size());
  for (size_t i = 0; i < left.size(); ++i) ASSERT_EQ(found[i], (float_reference<Type>(BP_PROD, left[i], right[0])));
}

template <class Type>
void check_random_floats(uint32_t dtype) {
  check_floats<Type>(dtype, random_elements(dtype, 50000, 7), random_elements(dtype, 50000, 8));
}

TEST(Combine, RoundsFloatsOnceAndHasOneQuietNan) {
  check_random_floats<Native<float>>(BP_F32);
  check_random_floats<Small<F16>>(BP_F16);
  check_random_floats<Small<BF16>>(BP_BF16);
}

// long double would round twice.
TEST(Combine, IsTheHardwaresArithmeticOnDouble) {
  const auto left = random_elements(BP_F64, 50000, 9), right = random_elements(BP_F64, 50000, 10);
  const auto a = values_of<double>(left), b = values_of<double>(right);
  const auto sum = values_of<double>(combined(BP_F64, BP_SUM, left, right));
  const auto product = values_of<double>(combined(BP_F64, BP_PROD, left, right));
  const auto same = [](double found, double expected) {
    if (std::isnan(expected)) expected = std::numeric_limits<double>::quiet_NaN();
    return std::bit_cast<uint64_t>(found) == std::bit_cast<uint64_t>(expected);
  };
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(same(sum[i], a[i] + b[i])) << a[i] << " " << b[i];
    ASSERT_TRUE(same(product[i], a[i] * b[i])) << a[i] << " " << b[i];
  }
  auto thirds = a;
  divide(BP_F64, thirds.data(), 3, thirds.size());
  auto scaled = a;
  multiply(BP_F64, scaled.data(), a.data(), &b[1], a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(same(thirds[i], a[i] / 3)) << a[i];
    ASSERT_TRUE(same(scaled[i], a[i] * b[1])) << a[i] << " " << b[1];
  }
}

TEST(Combine, IsRightForEveryPairOfEightBitFloats) {
  Bytes left, right;
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; ++b) {
      left.push_back(static_cast<unsigned char>(a));
      right.push_back(static_cast<unsigned char>(b));
    }
  check_floats<Small<F8E4M3>>(BP_F8E4M3, left, right);
  check_floats<Small<F8E5M2>>(BP_F8E5M2, left, right);
}

template <class F>
void check_zeros_and_nan(uint32_t dtype) {
  const F nan = std::numeric_limits<F>::quiet_NaN();
  const std::vector<F> left = {F{-0.0}, F{0.0}, nan, F{1}, -nan, F{-0.0}},
                       right = {F{0.0}, F{-0.0}, F{1}, nan, nan, F{-0.0}};
  const std::vector<F> least = {F{-0.0}, F{-0.0}, nan, nan, nan, F{-0.0}},
                       most = {F{0.0}, F{0.0}, nan, nan, nan, F{-0.0}};
  EXPECT_EQ(combined(dtype, BP_MIN, bytes_of(left), bytes_of(right)), bytes_of(least));
  EXPECT_EQ(combined(dtype, BP_MAX, bytes_of(left), bytes_of(right)), bytes_of(most));
}

TEST(Combine, MinAndMaxPropagateNanAndOrderZeros) {
  check_zeros_and_nan<float>(BP_F32);
  check_zeros_and_nan<double>(BP_F64);
}

template <class F>
void check_complex(uint32_t dtype) {
  using C = std::complex<F>;
  const std::vector<C> left = {{1, 2}, {-3, 0.5}, {0, 1}}, right = {{4, -1}, {2, 8}, {0, 1}};
  const std::vector<C> sum = {{5, 1}, {-1, 8.5}, {0, 2}}, product = {{6, 7}, {-10, -23}, {-1, 0}};
  for (const uint32_t op : {BP_SUM, BP_AVG, BP_PREMUL_SUM})
    EXPECT_EQ(values_of<C>(combined(dtype, op, bytes_of(left), bytes_of(right))), sum);
  EXPECT_EQ(values_of<C>(combined(dtype, BP_PROD, bytes_of(left), bytes_of(right))), product);
  auto halves = sum;
  divide(dtype, halves.data(), 2, halves.size());
  EXPECT_EQ(halves, (std::vector<C>{{2.5, 0.5}, {-0.5, 4.25}, {0, 1}}));
  auto turned = left;
  const C i{0, 1};
  multiply(dtype, turned.data(), turned.data(), &i, turned.size());
  EXPECT_EQ(turned, (std::vector<C>{{-2, 1}, {-0.5, -3}, {-1, 0}}));
}

TEST(Combine, IsComplexArithmetic) {
  check_complex<float>(BP_C64);
  check_complex<double>(BP_C128);
}

TEST(Reducible, FollowsTheRulesOfTheAbi) {
  EXPECT_FALSE(reducible(BP_BOOL, BP_AVG));
  EXPECT_TRUE(reducible(BP_BOOL, BP_SUM));
  for (const uint32_t dtype : {BP_C64, BP_C128}) {
    EXPECT_FALSE(reducible(dtype, BP_MIN));
    EXPECT_FALSE(reducible(dtype, BP_MAX));
  }
  for (uint32_t dtype = BP_F16; dtype < BP_DTYPE_COUNT; ++dtype)
    for (const uint32_t op : {BP_BAND, BP_BOR, BP_BXOR}) EXPECT_FALSE(reducible(dtype, op));
  EXPECT_FALSE(reducible(BP_DTYPE_COUNT, BP_SUM));
  EXPECT_FALSE(reducible(BP_F32, BP_REDUCE_OP_COUNT));
  // 1 bool with 8 ops, 8 integers with 9, 6 floats with 6, 2 complex with 4.
  EXPECT_EQ(all_pairs().size(), 8u + 8 * 9 + 6 * 6 + 2 * 4);
}

TEST(CombineNames, AreThoseOfTheAbi) {
  EXPECT_STREQ(dtype_name(BP_F8E4M3), "f8e4m3");
  EXPECT_STREQ(dtype_name(BP_C128), "c128");
  EXPECT_STREQ(dtype_name(99), "unknown dtype");
  EXPECT_STREQ(reduce_op_name(BP_PREMUL_SUM), "premul_sum");
  EXPECT_STREQ(reduce_op_name(99), "unknown reduce op");
  EXPECT_STREQ(op_name(BP_ALL_TO_ALLV), "all_to_allv");
  EXPECT_STREQ(op_name(BP_RECV), "recv");
  EXPECT_STREQ(op_name(99), "unknown operation");
  EXPECT_EQ(dtype_size(BP_C128), 16u);
  EXPECT_EQ(dtype_size(BP_BF16), 2u);
  EXPECT_EQ(dtype_size(99), 0u);
  for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) EXPECT_GT(dtype_size(dtype), 0u) << dtype_name(dtype);
}

}  // namespace
}  // namespace backplane::core
