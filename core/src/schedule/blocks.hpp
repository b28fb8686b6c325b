// SPDX-License-Identifier: Apache-2.0
//
// The division of a buffer among the ranks: equal blocks, blocks whose sizes differ by at most one, or a v-variant's
// counts and displacements.
#pragma once

#include <algorithm>
#include <cstdint>

#include "schedule/schedule.hpp"

namespace backplane::core {

class Blocks {
 public:
  // Adjacent blocks of `count` elements each.
  static Blocks equal(uint64_t count) { return Blocks(0, count, 0, nullptr, nullptr); }
  // `total` elements from `start` on in `parts` adjacent blocks, whose sizes differ by at most one, larger blocks
  // first.
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
  Region in(BufferRole buffer, int32_t block) const { return {buffer, offset(block), count(block)}; }
  uint64_t largest(int32_t world_size) const {
    if (counts_ != nullptr) return *std::max_element(counts_, counts_ + world_size);
    return base_ + (larger_ > 0 ? 1 : 0);
  }

 private:
  Blocks(uint64_t start, uint64_t base, uint64_t larger, const uint64_t* counts, const uint64_t* displs)
      : start_(start), base_(base), larger_(larger), counts_(counts), displs_(displs) {}

  uint64_t start_;
  uint64_t base_;
  uint64_t larger_;  // number of blocks, from the first, that have one more element
  const uint64_t* counts_;
  const uint64_t* displs_;
};

// (rank + distance) mod world_size, for a distance of -world_size or more.
inline int32_t neighbor(const CollectiveSpec& spec, int32_t rank, int32_t distance) {
  const int32_t moved = (rank + distance) % spec.world_size;
  return moved < 0 ? moved + spec.world_size : moved;
}

}  // namespace backplane::core
