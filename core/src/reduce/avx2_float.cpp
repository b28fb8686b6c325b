// SPDX-License-Identifier: Apache-2.0
//
// Compiled for AVX2 and F16C. Must not use inline functions of headers other than the compiler's intrinsics: the linker
// could choose this file's copy for the whole library.
#include "reduce/avx2_float.hpp"

#ifdef __x86_64__

#include <immintrin.h>

#include <cstring>

#include "backplane/abi/types.h"

namespace backplane::core::avx2 {
namespace {

constexpr uint64_t kWidth = 16;  // elements

struct Floats {
  __m256 low, high;  // in the format's order
};

__m256i load_32(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void store_32(void* to, __m256i bits) { _mm256_storeu_si256(static_cast<__m256i*>(to), bits); }
// condition ? yes : no, for each byte
__m256i choose(__m256i condition, __m256i yes, __m256i no) { return _mm256_blendv_epi8(no, yes, condition); }
__m256i join(__m128i low, __m128i high) { return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1); }

Floats from_halves(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
__m256i to_halves(Floats values) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return join(_mm256_cvtps_ph(values.low, kNearest), _mm256_cvtps_ph(values.high, kNearest));
}

// The conversions of F16C are exact and round to nearest even. They keep the bits of NaN, which `store` replaces.
struct HalfFloat {
  static constexpr uint64_t kSize = 2;  // bytes
  static Floats load(const void* from) { return from_halves(load_32(from)); }
  static void store(void* to, Floats values) {
    const __m256i halves = to_halves(values);
    const __m256i magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7FFF));
    const __m256i is_nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7C00));
    store_32(to, choose(is_nan, _mm256_set1_epi16(0x7E00), halves));
  }
};

// unpack and pack permute the elements in the same way.
struct BrainFloat {
  static constexpr uint64_t kSize = 2;
  static Floats load(const void* from) {
    const __m256i bits = load_32(from);
    const __m256i zero = _mm256_setzero_si256();
    return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, bits)),
            _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, bits))};
  }
  static void store(void* to, Floats values) {
    store_32(to, _mm256_packus_epi32(rounded(values.low), rounded(values.high)));
  }

 private:
  static __m256i rounded(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return choose(is_nan, _mm256_set1_epi32(0x7FC0), _mm256_srli_epi32(nearest, 16));
  }
};

// Rounds to the nearest number with kMantissa binary digits after its first one, ties to even; below 2^kLeast, to the
// last digit of a number of that size. Adds and subtracts 1.5 * 2^n, with n such that the last digit of the sum is the
// last digit of the result. Keeps infinities, NaN, and the sign of zeros.
template <int kMantissa, int kLeast>
__m256 round_to(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i own = _mm256_and_si256(bits, _mm256_set1_epi32(0x7F800000));
  // The upper bound keeps 1.5 * 2^n finite. Larger numbers overflow the format anyway.
  const __m256i exponent = _mm256_min_epi32(_mm256_max_epi32(own, _mm256_set1_epi32((127 + kLeast) << 23)),
                                            _mm256_set1_epi32((127 + 64) << 23));
  const __m256 large =
      _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(((23 - kMantissa) << 23) | 0x400000)));
  const __m256 sign = _mm256_and_ps(value, _mm256_set1_ps(-0.0F));
  return _mm256_or_ps(_mm256_sub_ps(_mm256_add_ps(value, large), large), sign);
}

// 16 bytes as the low halves of 16-bit numbers, and back.
__m256i load_16(const void* from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(from))); }
void store_16(void* to, __m256i numbers) {
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
  _mm_storeu_si128(static_cast<__m128i*>(to), bytes);
}

// f8e5m2 is the upper byte of an f16.
struct E5M2 {
  static constexpr uint64_t kSize = 1;
  static Floats load(const void* from) { return from_halves(_mm256_slli_epi16(load_16(from), 8)); }
  static void store(void* to, Floats values) {
    const __m256i halves = to_halves({round_to<2, -14>(values.low), round_to<2, -14>(values.high)});
    const __m256i bytes = _mm256_srli_epi16(halves, 8);
    const __m256i magnitude = _mm256_and_si256(bytes, _mm256_set1_epi16(0x7F));
    const __m256i is_nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7C));
    store_16(to, choose(is_nan, _mm256_set1_epi16(0x7E), bytes));
  }
};

// The shifted exponent and mantissa of f8e4m3 are those of an f16 that is smaller by 2^8, the difference of the biases.
struct E4M3 {
  static constexpr uint64_t kSize = 1;
  static Floats load(const void* from) {
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(load_16(from), 7), _mm256_set1_epi16(kMask));
    const __m256i largest = _mm256_set1_epi16(0x7F << 7);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, largest), largest);
    const Floats scaled = from_halves(_mm256_or_si256(halves, _mm256_srli_epi16(is_nan, 1)));
    const __m256 scale = _mm256_set1_ps(256);
    return {_mm256_mul_ps(scaled.low, scale), _mm256_mul_ps(scaled.high, scale)};
  }
  static void store(void* to, Floats values) {
    const __m256 scale = _mm256_set1_ps(1.0F / 256);
    const __m256i halves = to_halves(
        {_mm256_mul_ps(round_to<3, -6>(values.low), scale), _mm256_mul_ps(round_to<3, -6>(values.high), scale)});
    const __m256i nan = _mm256_set1_epi16(0x7F);
    const __m256i shifted = _mm256_srli_epi16(_mm256_and_si256(halves, _mm256_set1_epi16(0x7FFF)), 7);
    const __m256i magnitude = _mm256_min_epi16(shifted, nan);  // overflow becomes NaN
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(halves, 8), _mm256_set1_epi16(0x80));
    const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, nan);
    store_16(to, _mm256_or_si256(magnitude, _mm256_andnot_si256(is_nan, sign)));
  }

 private:
  static constexpr int16_t kMask = static_cast<int16_t>(0xBFFF);  // removes the copy of the sign
};

template <class Format, class Operation>
void apply(void* out, const void* left, const void* right, uint64_t count, const Operation& operation) {
  auto* to = static_cast<unsigned char*>(out);
  const auto* a = static_cast<const unsigned char*>(left);
  const auto* b = static_cast<const unsigned char*>(right);
  constexpr uint64_t kBlock = kWidth * Format::kSize;  // bytes
  const uint64_t size = count * Format::kSize;
  uint64_t at = 0;
  for (; at + kBlock <= size; at += kBlock) {
    const Floats x = Format::load(a + at);
    const Floats y = Format::load(b + at);
    Format::store(to + at, {operation(x.low, y.low), operation(x.high, y.high)});
  }
  if (at == size) return;
  unsigned char last_a[kBlock] = {};
  unsigned char last_b[kBlock] = {};
  std::memcpy(last_a, a + at, size - at);
  std::memcpy(last_b, b + at, size - at);
  const Floats x = Format::load(last_a);
  const Floats y = Format::load(last_b);
  Format::store(last_a, {operation(x.low, y.low), operation(x.high, y.high)});
  std::memcpy(to + at, last_a, size - at);
}

// Calls function(Format()) for the dtype. False for other dtypes.
template <class Function>
bool with_format(uint32_t dtype, const Function& function) {
  switch (dtype) {
    case BP_F16:
      return function(HalfFloat()), true;
    case BP_BF16:
      return function(BrainFloat()), true;
    case BP_F8E4M3:
      return function(E4M3()), true;
    case BP_F8E5M2:
      return function(E5M2()), true;
    default:
      return false;
  }
}

template <class Format>
void combine_as(uint32_t reduce_op, void* out, const void* left, const void* right, uint64_t count) {
  if (reduce_op == BP_PROD) {
    apply<Format>(out, left, right, count, [](__m256 a, __m256 b) { return _mm256_mul_ps(a, b); });
  } else {
    apply<Format>(out, left, right, count, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
  }
}

// The element in all positions.
template <class Format>
__m256 broadcast(const void* scalar) {
  unsigned char many[kWidth * Format::kSize];
  for (uint64_t i = 0; i < kWidth; ++i) std::memcpy(many + i * Format::kSize, scalar, Format::kSize);
  return Format::load(many).low;
}

template <class Format>
void multiply_as(void* out, const void* in, const void* scalar, uint64_t count) {
  const __m256 by = broadcast<Format>(scalar);
  apply<Format>(out, in, in, count, [by](__m256 a, __m256) { return _mm256_mul_ps(a, by); });
}

// Reduce operations: combine two results; finish the last one.
struct Sum {
  static __m256 combine(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static __m256 finish(__m256 sum, __m256) { return sum; }
};
struct Product {
  static __m256 combine(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 finish(__m256 product, __m256) { return product; }
};
struct Average {
  static __m256 combine(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static __m256 finish(__m256 sum, __m256 divisor) { return _mm256_div_ps(sum, divisor); }
};

// A whole block, or `size` bytes of one followed by zeros.
template <class Format, bool kWhole>
Floats load_block(const unsigned char* from, uint64_t size) {
  if constexpr (kWhole) return Format::load(from);
  unsigned char last[kWidth * Format::kSize] = {};
  std::memcpy(last, from, size);
  return Format::load(last);
}
template <class Format, bool kWhole>
void store_block(unsigned char* to, Floats values, uint64_t size) {
  if constexpr (kWhole) return Format::store(to, values);
  unsigned char last[kWidth * Format::kSize];
  Format::store(last, values);
  std::memcpy(to, last, size);
}

template <class Format, class Operation>
class Reducer {
 public:
  Reducer(void* out, const Inputs& inputs, uint64_t divisor)
      : out_(static_cast<unsigned char*>(out)),
        inputs_(inputs),
        divisor_(_mm256_set1_ps(static_cast<float>(divisor))) {}

  void run(uint64_t count) const {
    const uint64_t size = count * Format::kSize;
    uint64_t at = 0;
    for (; at + kTogether * kBlock <= size; at += kTogether * kBlock) reduce<kTogether, true>(at, kBlock);
    for (; at + kBlock <= size; at += kBlock) reduce<1, true>(at, kBlock);
    if (at < size) reduce<1, false>(at, size - at);
  }

 private:
  static constexpr uint64_t kBlock = kWidth * Format::kSize;  // bytes
  static constexpr uint64_t kTogether = 2;                    // blocks whose results are kept in registers

  // Reduces kBlocks blocks of all inputs from byte `at` on.
  template <uint64_t kBlocks, bool kWhole>
  void reduce(uint64_t at, uint64_t size) const {
    Floats results[kBlocks];
    load<kBlocks, kWhole>(results, 0, at, size);
    for (uint64_t k = 1; k < inputs_.size; ++k) {
      Floats values[kBlocks];
      load<kBlocks, kWhole>(values, k, at, size);
      for (uint64_t i = 0; i < kBlocks; ++i) {
        results[i].low = Operation::combine(results[i].low, values[i].low);
        results[i].high = Operation::combine(results[i].high, values[i].high);
      }
    }
    for (uint64_t i = 0; i < kBlocks; ++i) {
      const Floats finished = {Operation::finish(results[i].low, divisor_),
                               Operation::finish(results[i].high, divisor_)};
      store_block<Format, kWhole>(out_ + at + i * kBlock, finished, size);
    }
  }

  template <uint64_t kBlocks, bool kWhole>
  void load(Floats* values, uint64_t k, uint64_t at, uint64_t size) const {
    const unsigned char* const from = static_cast<const unsigned char*>(inputs_.data[k]) + at;
    for (uint64_t i = 0; i < kBlocks; ++i) values[i] = load_block<Format, kWhole>(from + i * kBlock, size);
    if (inputs_.scalars == nullptr || inputs_.scalars[k] == nullptr) return;
    const __m256 by = broadcast<Format>(inputs_.scalars[k]);
    for (uint64_t i = 0; i < kBlocks; ++i) {
      values[i] = {_mm256_mul_ps(values[i].low, by), _mm256_mul_ps(values[i].high, by)};
    }
  }

  unsigned char* const out_;
  const Inputs& inputs_;
  const __m256 divisor_;
};

template <class Format>
void reduce_as(uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor, uint64_t count) {
  if (reduce_op == BP_PROD) {
    Reducer<Format, Product>(out, inputs, divisor).run(count);
  } else if (reduce_op == BP_AVG) {
    Reducer<Format, Average>(out, inputs, divisor).run(count);
  } else {
    Reducer<Format, Sum>(out, inputs, divisor).run(count);
  }
}

}  // namespace

bool combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right, uint64_t count) {
  if (reduce_op == BP_MIN || reduce_op == BP_MAX) return false;
  return with_format(dtype, [=](auto format) { combine_as<decltype(format)>(reduce_op, out, left, right, count); });
}

bool divide(uint32_t dtype, void* data, uint64_t divisor, uint64_t count) {
  const __m256 by = _mm256_set1_ps(static_cast<float>(divisor));
  return with_format(dtype, [=](auto format) {
    apply<decltype(format)>(data, data, data, count, [by](__m256 a, __m256) { return _mm256_div_ps(a, by); });
  });
}

bool multiply(uint32_t dtype, void* out, const void* in, const void* scalar, uint64_t count) {
  return with_format(dtype, [=](auto format) { multiply_as<decltype(format)>(out, in, scalar, count); });
}

bool reduce(uint32_t dtype, uint32_t reduce_op, void* out, const Inputs& inputs, uint64_t divisor, uint64_t count) {
  return with_format(
      dtype, [=, &inputs](auto format) { reduce_as<decltype(format)>(reduce_op, out, inputs, divisor, count); });
}

}  // namespace backplane::core::avx2

#endif
