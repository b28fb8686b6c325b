// SPDX-License-Identifier: Apache-2.0
//
// How a buffer is divided among the ranks: equal blocks, the nearest to equal that a count allows, or a v-variant's
// counts and displacements.
#pragma once

#include <algorithm>
#include <cstdint>

#include "schedule/schedule.hpp"

namespace backplane::core {

class Blocks {
 public:
  // world_size blocks of `count` each, one after the other.
  static Blocks equal(uint64_t count) { return Blocks(0, count, 0, nullptr, nullptr); }
  // `total` elements, the first of them `start`, in `parts` blocks one after the other, whose sizes differ by one at
  // most, the larger ones first.
  static Blocks balanced(uint64_t total, int32_t parts, uint64_t start = 0) {
    const auto size = static_cast<uint64_t>(parts);
    return Blocks(start, total / size, total % size, nullptr, nullptr);
  }
  // The arrays must outlive the object.
  static Blocks varying(const uint64_t* counts, const uint64_t* displs) { return Blocks(0, 0, 0, counts, displs); }

  uint64_t count(int32_t block) const {
    if (counts_ != nullptr) return counts_[block];
    return base_ + (static_cast<uint64_t>(block) < larger_ ? 1 : 0);
  }
  uint64_t offset(int32_t block) const {
    if (counts_ != nullptr) return displs_[block];
    const auto index = static_cast<uint64_t>(block);
    return start_ + index * base_ + std::min(index, larger_);
  }
  Region in(Where where, int32_t block) const { return {where, offset(block), count(block)}; }
  uint64_t largest(int32_t world_size) const {
    if (counts_ != nullptr) return *std::max_element(counts_, counts_ + world_size);
    return base_ + (larger_ > 0 ? 1 : 0);
  }

 private:
  Blocks(uint64_t start, uint64_t base, uint64_t larger, const uint64_t* counts, const uint64_t* displs)
      : start_(start), base_(base), larger_(larger), counts_(counts), displs_(displs) {}

  uint64_t start_;
  uint64_t base_;
  uint64_t larger_;  // the first so many blocks have one element more
  const uint64_t* counts_;
  const uint64_t* displs_;
};

// (rank + distance) mod world_size, for any distance down to -world_size.
inline int32_t around(const Problem& problem, int32_t rank, int32_t distance) {
  const int32_t moved = (rank + distance) % problem.world_size;
  return moved < 0 ? moved + problem.world_size : moved;
}

}  // namespace backplane::core
