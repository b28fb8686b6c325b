// SPDX-License-Identifier: Apache-2.0
//
// Inputs and expected results of collectives. They are computed from numbers, so that each rank knows every rank's
// data.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace backplane::conformance {

bool is_complex(uint32_t dtype);
bool is_floating(uint32_t dtype);  // not complex
bool is_integer(uint32_t dtype);   // not bool
// f16, bf16 and the 8-bit floats.
bool is_small_float(uint32_t dtype);
// The alignment that a C compiler gives to such elements, in bytes.
uint64_t natural_alignment(uint32_t dtype);

// Arbitrary bits (bool: 0 or 1), for operations that move data.
void fill_bits(uint32_t dtype, void* data, uint64_t count, uint64_t name);

// The operands of one of `ranks` ranks in a reduction. Integers take any value and wrap, except with avg.
// Small floats are chosen so that the reduction is exact in every order; no float overflows.
void fill_operands(uint32_t dtype, uint32_t reduce_op, void* data, uint64_t count, uint64_t name, int32_t rank,
                   int32_t ranks);

// A rank's factor for premul_sum: one element.
void fill_factor(uint32_t dtype, void* factor, int32_t rank);

// The expected result of a reduction, independent of the order of its additions.
class Reduction {
 public:
  Reduction(uint32_t dtype, uint32_t reduce_op, uint64_t count, int32_t ranks);

  // One rank's operands; `factor` for premul_sum. Once for each rank.
  void add(const void* operands, const void* factor);
  // Results may differ from the exact one by the rounding of that many additions, also where fill_operands' choice
  // would make them exact.
  void allow_rounding(int32_t additions) { additions_ = additions; }

  // "" if `actual` holds the result, else the first wrong index, with what is expected and what is there.
  std::string difference(const void* actual) const;

 private:
  bool by_value() const;  // computed in double and compared with a bound, instead of element by element
  void add_values(const void* operands, const void* factor);
  std::string exact_difference(const void* actual) const;
  double bound(uint64_t part) const;

  const uint32_t dtype_;
  const uint32_t reduce_op_;
  const uint64_t count_;
  const int32_t ranks_;
  int32_t added_ = 0;
  int32_t additions_ = 0;
  std::vector<std::byte> exact_;
  std::vector<std::complex<double>> values_;
  std::vector<double> magnitudes_;  // the sum, or product, of the operands' absolute values
};

// The first index at which two arrays of `count` elements differ, or -1.
int64_t first_difference(uint32_t dtype, const void* left, const void* right, uint64_t count);
// An element, readable: "1.5", "(1.5, -2)", and its bits.
std::string element_text(uint32_t dtype, const void* data, uint64_t i);

}  // namespace backplane::conformance
