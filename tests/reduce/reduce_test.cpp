// SPDX-License-Identifier: Apache-2.0
//
// Reductions of many inputs: small floats against f32 that is rounded once, the other dtypes against pairs.
#include "reduce/reduce.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "reduce/combine.hpp"
#include "reduce/small_float.hpp"
#include "support/rounded_once.hpp"

namespace backplane::core {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr uint64_t kRanks[] = {1, 2, 3, 4, 5, 7, 8, 33};

// The inputs of `ranks` ranks: random bits, so numbers of all sizes, infinities and NaN.
struct Contributions {
  Contributions(uint32_t dtype, uint64_t ranks, uint64_t count, bool scaled) {
    std::mt19937 random(7);
    const uint64_t element = dtype_size(dtype);
    data.assign(ranks, Bytes(count * element));
    scalars.assign(ranks, Bytes(element));
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      for (auto& byte : data[rank]) byte = static_cast<unsigned char>(dtype == BP_BOOL ? random() & 1 : random());
      for (auto& byte : scalars[rank]) byte = static_cast<unsigned char>(dtype == BP_BOOL ? random() & 1 : random());
      data_pointers.push_back(data[rank].data());
      scalar_pointers.push_back(scaled && rank % 3 != 1 ? scalars[rank].data() : nullptr);
    }
  }
  Inputs inputs() const { return {data_pointers.data(), scalar_pointers.data(), data.size()}; }

  std::vector<Bytes> data;
  std::vector<Bytes> scalars;
  std::vector<const void*> data_pointers;
  std::vector<const void*> scalar_pointers;
};

Bytes by_pairs(uint32_t dtype, uint32_t op, const Contributions& all, uint64_t count) {
  std::vector<Bytes> operands = all.data;
  for (size_t rank = 0; rank < operands.size(); ++rank) {
    const void* const scalar = all.scalar_pointers[rank];
    if (scalar != nullptr) multiply(dtype, operands[rank].data(), operands[rank].data(), scalar, count);
    if (rank > 0) combine(dtype, op, operands[0].data(), operands[0].data(), operands[rank].data(), count);
  }
  if (op == BP_AVG) divide(dtype, operands[0].data(), operands.size(), count);
  return operands[0];
}

Bytes expected(uint32_t dtype, uint32_t op, const Contributions& all, uint64_t count) {
  if (!test::is_small_float(dtype) || op == BP_MIN || op == BP_MAX) return by_pairs(dtype, op, all, count);
  Bytes out(count * dtype_size(dtype));
  test::reduce_and_round_once(dtype, op, out.data(), all.data_pointers.data(), all.scalar_pointers.data(),
                              all.data.size(), count);
  return out;
}

// 20000 elements exceed the parts in which reduce works. 37 and 1003 are not multiples of a vector's size.
TEST(Reduce, EqualsTheReferenceAndThePortableFunction) {
  for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) {
    for (uint32_t op = 0; op < BP_REDUCE_OP_COUNT; ++op) {
      if (!reducible(dtype, op)) continue;
      for (const uint64_t ranks : kRanks) {
        for (const uint64_t count : {0, 1, 37, 1003, ranks == 3 ? 20000 : 64}) {
          const Contributions all(dtype, ranks, count, op == BP_PREMUL_SUM);
          const Bytes result = expected(dtype, op, all, count);
          Bytes found(result.size());
          Bytes portable(result.size());
          reduce(dtype, op, found.data(), all.inputs(), ranks, count);
          reduce_portable(dtype, op, portable.data(), all.inputs(), ranks, count);
          ASSERT_EQ(found, result) << dtype_name(dtype) << " " << reduce_op_name(op) << " of " << ranks;
          ASSERT_EQ(portable, result) << dtype_name(dtype) << " " << reduce_op_name(op) << " of " << ranks;
        }
      }
    }
  }
}

TEST(Reduce, OutputMayBeAnyInput) {
  constexpr uint64_t kCount = 10007;
  for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) {
    for (const uint32_t op : {BP_SUM, BP_PREMUL_SUM}) {
      for (size_t place = 0; place < 4; ++place) {
        Contributions all(dtype, 4, kCount, op == BP_PREMUL_SUM);
        if (op == BP_PREMUL_SUM) all.scalar_pointers[1] = all.scalars[1].data();
        const Bytes result = expected(dtype, op, all, kCount);
        reduce(dtype, op, all.data[place].data(), all.inputs(), 4, kCount);
        ASSERT_EQ(all.data[place], result) << dtype_name(dtype) << " " << reduce_op_name(op) << " at " << place;
      }
    }
  }
}

// Sums in which each step would be lost by rounding in the dtype.
template <class Format>
float sum(uint32_t dtype, uint32_t op, const std::vector<float>& numbers) {
  std::vector<typename Format::Bits> data;
  for (const float number : numbers) data.push_back(Format::from_float(number));
  std::vector<const void*> pointers;
  for (const auto& one : data) pointers.push_back(&one);
  typename Format::Bits out = 0;
  reduce(dtype, op, &out, {pointers.data(), nullptr, pointers.size()}, pointers.size(), 1);
  return Format::to_float(out);
}

TEST(Reduce, RoundsOnce) {
  EXPECT_EQ(sum<BF16>(BP_BF16, BP_SUM, {256, 1, 1, 1}), 260);
  EXPECT_EQ(sum<F16>(BP_F16, BP_SUM, {2048, 1, 1, 1}), 2052);
  EXPECT_EQ(sum<F8E4M3>(BP_F8E4M3, BP_SUM, {16, 1, 1, 1}), 20);
  EXPECT_EQ(sum<F8E5M2>(BP_F8E5M2, BP_SUM, {8, 1, 1, 1}), 12);
}

TEST(Reduce, DividesBeforeItRounds) {
  EXPECT_EQ(sum<F8E4M3>(BP_F8E4M3, BP_AVG, {288, 288}), 288);
  EXPECT_EQ(sum<F8E5M2>(BP_F8E5M2, BP_AVG, {49152, 49152, 49152}), 49152);
  EXPECT_EQ(sum<F16>(BP_F16, BP_AVG, {60000, 60000}), 60000);
}

}  // namespace
}  // namespace backplane::core
