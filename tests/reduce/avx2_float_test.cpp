// SPDX-License-Identifier: Apache-2.0
//
// The vectorised arithmetic of small floats against that of single elements: every pair of two f8, and every f16 and
// bf16 with one number of each exponent and sign.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "reduce/combine.hpp"
#include "reduce/elements.hpp"

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace backplane::core {
namespace {

template <class FormatType, uint32_t kDtype>
struct Case {
  using Format = FormatType;
  static constexpr uint32_t dtype = kDtype;
  static constexpr uint32_t kCount = 1U << (8 * sizeof(typename Format::Bits));
};

template <class Tested>
class Avx2Float : public testing::Test {
 protected:
  using Element = SmallFloating<typename Tested::Format>;
  using Stored = typename Element::Stored;
  using Numbers = std::vector<Stored>;

  Avx2Float() {
    for (uint32_t bits = 0; bits < Tested::kCount; ++bits) all_.push_back(static_cast<Stored>(bits));
  }
  // All f8. Of f16 and bf16 each exponent and sign, with the smallest, the largest and two other mantissas.
  Numbers some() const {
    if (Tested::kCount == 256) return all_;
    constexpr uint32_t kMantissa = Tested::dtype == BP_F16 ? 0x3FF : 0x7F;
    Numbers some;
    for (uint32_t top = 0; top < Tested::kCount; top += kMantissa + 1) {
      if (Tested::dtype == BP_BF16 && top % 0x200 > 0x80) continue;  // every fourth pair of exponents
      for (const uint32_t mantissa : {0U, 1U, kMantissa / 3, kMantissa}) {
        some.push_back(static_cast<Stored>(top | mantissa));
      }
    }
    return some;
  }
  // `computed` against reference(number) for all numbers.
  template <class Reference>
  void expect_all(const Numbers& computed, const Reference& reference, const char* what, uint32_t other) const {
    for (size_t i = 0; i < all_.size(); ++i) {
      ASSERT_EQ(computed[i], reference(all_[i])) << what << " of " << all_[i] << " and " << other;
    }
  }
  template <class Operation>
  void expect_combined(uint32_t reduce_op, const Operation& operation) const {
    Numbers out(all_.size());
    for (const Stored other : some()) {
      combine(Tested::dtype, reduce_op, out.data(), all_.data(), Numbers(all_.size(), other).data(), all_.size());
      expect_all(
          out, [&](Stored x) { return operation(x, other); }, reduce_op_name(reduce_op), other);
      if (this->HasFatalFailure()) return;
    }
  }

  Numbers all_;
};

using Cases = testing::Types<Case<F16, BP_F16>, Case<BF16, BP_BF16>, Case<F8E4M3, BP_F8E4M3>, Case<F8E5M2, BP_F8E5M2>>;
TYPED_TEST_SUITE(Avx2Float, Cases);

TYPED_TEST(Avx2Float, Adds) { this->expect_combined(BP_SUM, TestFixture::Element::add); }
TYPED_TEST(Avx2Float, AddsForAverages) { this->expect_combined(BP_AVG, TestFixture::Element::add); }
TYPED_TEST(Avx2Float, Multiplies) { this->expect_combined(BP_PROD, TestFixture::Element::multiply); }
TYPED_TEST(Avx2Float, TakesTheMinimum) { this->expect_combined(BP_MIN, TestFixture::Element::minimum); }
TYPED_TEST(Avx2Float, TakesTheMaximum) { this->expect_combined(BP_MAX, TestFixture::Element::maximum); }

TYPED_TEST(Avx2Float, Scales) {
  typename TestFixture::Numbers out(this->all_.size());
  for (const auto by : this->some()) {
    multiply(TypeParam::dtype, out.data(), this->all_.data(), &by, out.size());
    this->expect_all(
        out, [by](auto x) { return TestFixture::Element::multiply(x, by); }, "scaled", by);
  }
}

TYPED_TEST(Avx2Float, Divides) {
  std::vector<uint64_t> divisors = {uint64_t{1} << 20, (uint64_t{1} << 24) + 1, uint64_t{1} << 40, ~uint64_t{0}};
  for (uint64_t divisor = 1; divisor < 70; ++divisor) divisors.push_back(divisor);
  for (const uint64_t divisor : divisors) {
    auto out = this->all_;
    divide(TypeParam::dtype, out.data(), divisor, out.size());
    this->expect_all(
        out, [divisor](auto x) { return TestFixture::Element::divide_by(x, divisor); }, "quotient",
        static_cast<uint32_t>(divisor));
  }
}

#ifdef __x86_64__
// No intermediate f32 is subnormal. (Subnormal bf16 are subnormal f32.)
TYPED_TEST(Avx2Float, IsIndependentOfFlushingToZero) {
  if (TypeParam::dtype == BP_BF16) GTEST_SKIP() << "subnormal bf16 are subnormal f32";
  typename TestFixture::Numbers normal(this->all_.size());
  typename TestFixture::Numbers flushing(this->all_.size());
  const typename TestFixture::Numbers least(this->all_.size(), 1);
  combine(TypeParam::dtype, BP_SUM, normal.data(), this->all_.data(), least.data(), normal.size());
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
  combine(TypeParam::dtype, BP_SUM, flushing.data(), this->all_.data(), least.data(), flushing.size());
  _mm_setcsr(before);
  EXPECT_EQ(normal, flushing);
}
#endif

// Partial blocks at any address write only their elements.
TYPED_TEST(Avx2Float, WritesOnlyItsElements) {
  using Stored = typename TestFixture::Stored;
  const auto one = TypeParam::Format::from_float(1);
  for (size_t begin = 0; begin < 3; ++begin) {
    for (size_t count = 0; count < 50; ++count) {
      typename TestFixture::Numbers data(60, one);
      combine(TypeParam::dtype, BP_SUM, &data[begin], &data[begin], &data[begin], count);
      const Stored twice = TypeParam::Format::from_float(2);
      multiply(TypeParam::dtype, &data[begin], &data[begin], &twice, count);
      divide(TypeParam::dtype, &data[begin], 2, count);
      const auto is_one = [one](Stored x) { return x == one; };
      const auto first = data.begin() + static_cast<ptrdiff_t>(begin);
      const auto last = first + static_cast<ptrdiff_t>(count);
      EXPECT_TRUE(std::all_of(data.begin(), first, is_one) && std::all_of(last, data.end(), is_one)) << count;
      const auto two = TypeParam::Format::from_float(2);  // 1 + 1, times 2, halved
      EXPECT_TRUE(std::all_of(first, last, [two](Stored x) { return x == two; })) << count;
    }
  }
}

}  // namespace
}  // namespace backplane::core
