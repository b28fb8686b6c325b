// SPDX-License-Identifier: Apache-2.0
#include "floats.hpp"

#include <cstddef>
#include <cstring>

#include "backplane/abi/types.h"

namespace backplane::validate {
namespace {

// Bit masks of a floating-point format. All exponent bits are set in NaN and infinities.
template <typename Word>
struct Format {
  Word exponent;
  Word mantissa;
};

template <typename Word>
NotFinite find(const Format<Word>& format, const void* data, uint64_t count, uint64_t parts) {
  const auto* bytes = static_cast<const std::byte*>(data);
  const auto word_at = [bytes](uint64_t i) {
    Word word;
    std::memcpy(&word, bytes + i * sizeof(Word), sizeof word);
    return word;
  };
  NotFinite result;
  for (uint64_t i = 0; i < count; ++i) {
    bool is_not_finite = false;
    for (uint64_t part = 0; part < parts; ++part) {
      const Word word = word_at(i * parts + part);
      if ((word & format.exponent) != format.exponent) continue;
      if (!is_not_finite && result.count == 0) {
        result.first = i;
        result.first_is_nan = (word & format.mantissa) != 0;
      }
      is_not_finite = true;
    }
    if (is_not_finite) ++result.count;
  }
  return result;
}

}  // namespace

bool is_floating(uint32_t dtype) { return dtype >= BP_F16 && dtype <= BP_C128; }

NotFinite find_not_finite(uint32_t dtype, const void* data, uint64_t count) {
  constexpr Format<uint32_t> kSingle = {0x7F800000u, 0x007FFFFFu};
  constexpr Format<uint64_t> kDouble = {UINT64_C(0x7FF0000000000000), UINT64_C(0x000FFFFFFFFFFFFF)};
  switch (dtype) {
    case BP_F16:
      return find<uint16_t>({0x7C00, 0x03FF}, data, count, 1);
    case BP_BF16:
      return find<uint16_t>({0x7F80, 0x007F}, data, count, 1);
    case BP_F32:
      return find(kSingle, data, count, 1);
    case BP_F64:
      return find(kDouble, data, count, 1);
    case BP_F8E4M3:  // no infinities, one pattern for NaN
      return find<uint8_t>({0x7F, 0x07}, data, count, 1);
    case BP_F8E5M2:
      return find<uint8_t>({0x7C, 0x03}, data, count, 1);
    case BP_C64:
      return find(kSingle, data, count, 2);
    case BP_C128:
      return find(kDouble, data, count, 2);
    default:
      return {};
  }
}

}  // namespace backplane::validate
