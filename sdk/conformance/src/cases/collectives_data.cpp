// SPDX-License-Identifier: Apache-2.0
#include "collectives_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../arithmetic.hpp"
#include "backplane/abi/types.h"
#include "p2p_traffic.hpp"

namespace backplane::conformance {
namespace {

// The dtype of the two halves of a complex element, or the dtype itself.
uint32_t part_dtype(uint32_t dtype) {
  if (dtype == BP_C64) return BP_F32;
  return dtype == BP_C128 ? uint32_t{BP_F64} : dtype;
}
uint64_t parts(uint32_t dtype) { return is_complex(dtype) ? 2 : 1; }

uint64_t drawn(uint64_t name, uint64_t i) {
  uint64_t word = 0;
  fill_pattern(&word, sizeof word, name + 8 * i);
  return word;
}
double unit(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }  // [0, 1)

// Only the operands of two ranks differ from the neutral element. They have few digits.
double exact_operand(uint32_t reduce_op, uint64_t word, uint64_t i, int32_t rank, int32_t ranks) {
  const auto world = static_cast<uint64_t>(ranks);
  const auto place = (static_cast<uint64_t>(rank) + world - i % world) % world;
  const bool takes_part = place < 2;
  const double sign = (word & 1) != 0 ? -1 : 1;
  if (reduce_op == BP_PROD) return takes_part ? sign * ((word & 2) != 0 ? 2.0 : 0.5) : 1.0;
  return takes_part ? sign * ((word & 2) != 0 ? 2.0 : 1.0) : 0.0;
}

double operand(uint32_t dtype, uint32_t reduce_op, uint64_t word, uint64_t i, int32_t rank, int32_t ranks) {
  if (reduce_op == BP_MIN || reduce_op == BP_MAX) return unit(word) * 200 - 100;
  if (is_small_float(dtype)) return exact_operand(reduce_op, word, i, rank, ranks);
  if (reduce_op == BP_PROD) return (0.8 + 0.45 * unit(word)) * ((word & 1) != 0 ? -1 : 1);
  return unit(word) * 2 - 1;
}

// Small enough that the sum of `ranks` such integers fits.
void fill_summands(uint32_t dtype, void* data, uint64_t i, uint64_t word, int32_t ranks) {
  const bool is_signed = dtype == BP_I8 || dtype == BP_I16 || dtype == BP_I32 || dtype == BP_I64;
  const int bits = static_cast<int>(8 * bp_dtype_size(dtype)) - (is_signed ? 1 : 0);
  const double largest = std::floor(std::min(std::ldexp(1.0, bits) - 1, 0x1p50) / ranks);
  from_double(dtype, data, i, std::floor(unit(word) * (largest + 1)) * (is_signed && (word & 1) != 0 ? -1 : 1));
}

std::complex<double> value_of(uint32_t dtype, const void* data, uint64_t i) {
  const uint32_t part = part_dtype(dtype);
  if (!is_complex(dtype)) return {as_double(part, data, i), 0.0};
  return {as_double(part, data, 2 * i), as_double(part, data, 2 * i + 1)};
}

bool same_number(double left, double right) { return left == right || (std::isnan(left) && std::isnan(right)); }

}  // namespace

bool is_complex(uint32_t dtype) { return dtype == BP_C64 || dtype == BP_C128; }
bool is_floating(uint32_t dtype) { return epsilon(dtype) > 0 && !is_complex(dtype); }
bool is_integer(uint32_t dtype) { return dtype >= BP_I8 && dtype <= BP_U64; }
bool is_small_float(uint32_t dtype) { return is_floating(dtype) && bp_dtype_size(dtype) <= 2; }
uint64_t natural_alignment(uint32_t dtype) { return bp_dtype_size(part_dtype(dtype)); }

void fill_bits(uint32_t dtype, void* data, uint64_t count, uint64_t name) {
  fill_pattern(data, count * bp_dtype_size(dtype), name);
  if (dtype != BP_BOOL) return;
  auto* at = static_cast<uint8_t*>(data);
  for (uint64_t i = 0; i < count; ++i) at[i] &= 1;
}

void fill_operands(uint32_t dtype, uint32_t reduce_op, void* data, uint64_t count, uint64_t name, int32_t rank,
                   int32_t ranks) {
  fill_bits(dtype, data, count, name);
  if (dtype == BP_BOOL) return;
  if (is_integer(dtype)) {
    for (uint64_t i = 0; i < count; ++i) {
      // A product of odd numbers keeps all its digits.
      if (reduce_op == BP_PROD) static_cast<uint8_t*>(data)[i * bp_dtype_size(dtype)] |= 1;
      if (reduce_op == BP_AVG) fill_summands(dtype, data, i, drawn(name, i), ranks);
    }
    return;
  }
  const uint64_t numbers = count * parts(dtype);
  for (uint64_t i = 0; i < numbers; ++i) {
    from_double(part_dtype(dtype), data, i, operand(dtype, reduce_op, drawn(name, i), i, rank, ranks));
  }
}

void fill_factor(uint32_t dtype, void* factor, int32_t rank) {
  std::memset(factor, 0, bp_dtype_size(dtype));
  if (dtype == BP_BOOL || is_integer(dtype)) {
    from_double(dtype, factor, 0, dtype == BP_BOOL ? (rank % 3 != 1 ? 1 : 0) : 3 + 2 * rank);
    return;
  }
  from_double(part_dtype(dtype), factor, 0, rank % 2 == 0 ? 1 : 2);
  if (is_complex(dtype)) from_double(part_dtype(dtype), factor, 1, rank % 3 - 1);
}

Reduction::Reduction(uint32_t dtype, uint32_t reduce_op, uint64_t count, int32_t ranks)
    : dtype_(dtype), reduce_op_(reduce_op), count_(count), ranks_(ranks) {
  if (by_value()) {
    const std::complex<double> neutral = reduce_op == BP_PROD ? 1.0 : 0.0;
    values_.assign(count, neutral);
    magnitudes_.assign(count, neutral.real());
  }
}

bool Reduction::by_value() const {
  return (is_floating(dtype_) || is_complex(dtype_)) && reduce_op_ != BP_MIN && reduce_op_ != BP_MAX;
}

void Reduction::add(const void* operands, const void* factor) {
  ++added_;
  if (by_value()) return add_values(operands, factor);
  const auto* bytes = static_cast<const std::byte*>(operands);
  std::vector<std::byte> mine(bytes, bytes + count_ * bp_dtype_size(dtype_));
  if (reduce_op_ == BP_PREMUL_SUM) multiply(dtype_, mine.data(), count_, factor);
  if (added_ == 1) {
    exact_ = std::move(mine);
  } else {
    combine(dtype_, reduce_op_, exact_.data(), exact_.data(), mine.data(), count_);
  }
  if (added_ == ranks_ && reduce_op_ == BP_AVG) divide(dtype_, exact_.data(), count_, static_cast<uint64_t>(ranks_));
}

void Reduction::add_values(const void* operands, const void* factor) {
  const std::complex<double> by = reduce_op_ == BP_PREMUL_SUM ? value_of(dtype_, factor, 0) : 1.0;
  for (uint64_t i = 0; i < count_; ++i) {
    const std::complex<double> value = value_of(dtype_, operands, i) * by;
    if (reduce_op_ == BP_PROD) {
      values_[i] *= value;
      magnitudes_[i] *= std::abs(value);
    } else {
      values_[i] += value;
      magnitudes_[i] += std::abs(value);
    }
    if (added_ == ranks_ && reduce_op_ == BP_AVG) {
      values_[i] /= ranks_;
      magnitudes_[i] /= ranks_;
    }
  }
}

// Each operation errs by half an epsilon of a partial result, which is no larger than the magnitude; twice that allows
// for other roundings than to nearest. N. Higham, Accuracy and Stability of Numerical Algorithms, section 4.2.
double Reduction::bound(uint64_t i) const {
  const double smallest =
      is_small_float(dtype_) && dtype_ != BP_BF16 ? epsilon(dtype_) * (dtype_ == BP_F8E4M3 ? 0x1p-6 : 0x1p-14) : 0;
  if (additions_ > 0) return additions_ * (epsilon(dtype_) * magnitudes_[i] + smallest);
  if (is_small_float(dtype_)) return reduce_op_ == BP_AVG ? 4 * (epsilon(dtype_) * magnitudes_[i] + smallest) : 0;
  return (ranks_ + 3) * (is_complex(dtype_) ? 4 : 1) * epsilon(dtype_) * magnitudes_[i];
}

std::string Reduction::exact_difference(const void* actual) const {
  const bool numbers = is_floating(dtype_);
  for (uint64_t i = 0; i < count_; ++i) {
    const bool same = numbers
                          ? same_number(as_double(dtype_, exact_.data(), i), as_double(dtype_, actual, i))
                          : first_difference(dtype_, exact_.data() + i * bp_dtype_size(dtype_),
                                             static_cast<const std::byte*>(actual) + i * bp_dtype_size(dtype_), 1) < 0;
    if (same) continue;
    return fmt::format("element {} of {}: expected {}, found {}", i, count_, element_text(dtype_, exact_.data(), i),
                       element_text(dtype_, actual, i));
  }
  return "";
}

std::string Reduction::difference(const void* actual) const {
  if (!by_value()) return exact_difference(actual);
  for (uint64_t i = 0; i < count_; ++i) {
    const double off = std::abs(value_of(dtype_, actual, i) - values_[i]);
    if (off <= bound(i)) continue;  // false for a NaN
    const std::string expected = is_complex(dtype_) ? fmt::format("({:g}, {:g})", values_[i].real(), values_[i].imag())
                                                    : fmt::format("{:g}", values_[i].real());
    return fmt::format("element {} of {}: expected {} +- {:g}, found {}", i, count_, expected, bound(i),
                       element_text(dtype_, actual, i));
  }
  return "";
}

int64_t first_difference(uint32_t dtype, const void* left, const void* right, uint64_t count) {
  const uint64_t size = bp_dtype_size(dtype);
  const auto* a = static_cast<const char*>(left);
  const auto* b = static_cast<const char*>(right);
  if (count == 0 || std::memcmp(a, b, count * size) == 0) return -1;
  for (uint64_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i * size, b + i * size, size) != 0) return static_cast<int64_t>(i);
  }
  return -1;
}

std::string element_text(uint32_t dtype, const void* data, uint64_t i) {
  const uint64_t size = bp_dtype_size(dtype);
  const auto* at = static_cast<const uint8_t*>(data) + i * size;
  std::string bits;
  for (uint64_t byte = size; byte-- > 0;) {
    bits += "0123456789abcdef"[at[byte] >> 4];
    bits += "0123456789abcdef"[at[byte] & 15];
  }
  const std::complex<double> value = value_of(dtype, data, i);
  if (is_complex(dtype)) return fmt::format("({:g}, {:g}) [0x{}]", value.real(), value.imag(), bits);
  return fmt::format("{:g} [0x{}]", value.real(), bits);
}

}  // namespace backplane::conformance
