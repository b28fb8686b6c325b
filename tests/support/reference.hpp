// SPDX-License-Identifier: Apache-2.0
//
// Reference for tests that run collectives: the elements that each rank contributes, and the results. Every dtype and
// reduce operation is checked by the conformance cases (sdk/conformance/src/cases), which have a reference of their
// own.
#pragma once

#include <cstdint>
#include <vector>

#include "support/optimized.hpp"

namespace backplane::test {

// Element i of rank r's data, as an integer: sums over 9 ranks fit an int8_t and are exact in a float. The sequence has
// no short period, so that a shifted or exchanged block differs.
template <typename T>
[[gnu::always_inline]] inline T element(int32_t rank, uint64_t i) {
  constexpr uint64_t kValues = sizeof(T) == 1 ? 13 : (sizeof(T) == 2 ? 3001 : uint64_t{1} << 20);
  const uint64_t hash = (i * 64 + static_cast<uint64_t>(rank) + 1) * UINT64_C(0x9E3779B97F4A7C15);  // Fibonacci hashing
  return static_cast<T>((hash >> 32) % kValues);
}

// Its sum over the ranks 0 to ranks - 1.
template <typename T>
[[gnu::always_inline]] inline T element_sum(int32_t ranks, uint64_t i) {
  T sum{};
  for (int32_t rank = 0; rank < ranks; ++rank) sum = static_cast<T>(sum + element<T>(rank, i));
  return sum;
}

// `count` elements of a rank, from `first` on.
template <typename T>
BACKPLANE_TEST_OPTIMIZED void write_data_of(T* data, int32_t rank, uint64_t count, uint64_t first = 0) {
  for (uint64_t i = 0; i < count; ++i) data[i] = element<T>(rank, first + i);
}
template <typename T>
std::vector<T> data_of(int32_t rank, uint64_t count, uint64_t first = 0) {
  std::vector<T> data(count);
  write_data_of(data.data(), rank, count, first);
  return data;
}

// Their sum over all ranks.
template <typename T>
BACKPLANE_TEST_OPTIMIZED void write_sum_of(T* sum, int32_t ranks, uint64_t count, uint64_t first = 0) {
  for (uint64_t i = 0; i < count; ++i) sum[i] = element_sum<T>(ranks, first + i);
}
template <typename T>
std::vector<T> sum_of(int32_t ranks, uint64_t count, uint64_t first = 0) {
  std::vector<T> sum(count);
  write_sum_of(sum.data(), ranks, count, first);
  return sum;
}

// `count` elements of each rank, from `first` on, in rank order.
template <typename T>
std::vector<T> blocks_of_all(int32_t ranks, uint64_t count, uint64_t first = 0) {
  std::vector<T> all;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<T> block = data_of<T>(rank, count, first);
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

}  // namespace backplane::test
