// SPDX-License-Identifier: Apache-2.0
//
// A bp_op in terms of bytes and blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backplane/base/op_digest.hpp"
#include "steps.hpp"

namespace backplane::shm {

inline void copy(std::byte* to, const std::byte* from, uint64_t size) {
  if (size > 0 && to != from) std::memcpy(to, from, size);
}

struct Block {
  const std::byte* data = nullptr;
  uint64_t size = 0;  // bytes
};

struct OutputBlock {
  std::byte* data = nullptr;
  uint64_t size = 0;  // bytes
  operator Block() const { return {data, size}; }
};

// Bytes of a block per step, if a slot is divided into `parts`. `max_size`: size of the largest block.
inline uint64_t part_of_slot(uint64_t parts, uint64_t max_size) {
  return std::min(kSlotSize / parts, (max_size + 63) / 64 * 64) / 64 * 64;
}
// The part of rank `from`'s slot that is for rank `to`. There is none for `from` itself.
inline uint64_t part_for(int32_t to, int32_t from) { return static_cast<uint64_t>(to > from ? to - 1 : to); }

struct Call {
  Call(const bp_op& operation, int32_t ranks, LazyDeadline& deadline)
      : op(operation),
        element(op.kind == BP_BARRIER ? 1 : bp_dtype_size(op.dtype)),
        world_size(ranks),
        root(op.root),
        varies(op.kind == BP_GATHERV || op.kind == BP_SCATTERV || op.kind == BP_ALL_GATHERV ||
               op.kind == BP_REDUCE_SCATTERV || op.kind == BP_ALL_TO_ALLV),
        input{static_cast<const std::byte*>(op.input.data), op.input.count * element},
        output{static_cast<std::byte*>(op.output.data), op.output.count * element},
        scalar(reduces() && op.reduce_op == BP_PREMUL_SUM ? static_cast<const std::byte*>(op.scalar) : nullptr),
        averages(reduces() && op.reduce_op == BP_AVG),
        context{deadline, base::digest_with_counts(op, ranks).value()} {
    if (op.kind == BP_BROADCAST) input = output;
  }

  // Rank r's block of an input, or of an output, that has one block per rank.
  Block block(int32_t rank) const { return part(rank, input, op.in_counts, op.in_displs); }
  OutputBlock output_block(int32_t rank) const {
    const Block found = part(rank, output, op.out_counts, op.out_displs);
    return {output.data == nullptr ? nullptr : output.data + (found.data - output.data), found.size};
  }
  // Of an element, or of one component of a complex number.
  uint64_t alignment() const { return op.dtype == BP_C64 || op.dtype == BP_C128 ? element / 2 : element; }
  uint64_t max_in() const { return max_size(op.in_counts); }
  uint64_t max_out() const { return max_size(op.out_counts); }

  const bp_op& op;
  const uint64_t element;  // bytes
  const int32_t world_size;
  const int32_t root;
  const bool varies;  // counts differ between ranks
  Block input;
  OutputBlock output;
  const std::byte* const scalar;  // factor for this rank's input, or null
  const bool averages;            // the sum is divided by the number of ranks
  StepContext context;

 private:
  bool reduces() const {
    return op.kind == BP_REDUCE || op.kind == BP_ALL_REDUCE || op.kind == BP_REDUCE_SCATTER ||
           op.kind == BP_REDUCE_SCATTERV;
  }
  Block part(int32_t rank, const Block& all, const uint64_t* counts, const uint64_t* displs) const {
    const auto at = static_cast<uint64_t>(rank);
    if (counts == nullptr) {
      const uint64_t size = all.size / static_cast<uint64_t>(world_size);
      return {all.data == nullptr ? nullptr : all.data + at * size, size};
    }
    return {all.data == nullptr ? nullptr : all.data + displs[at] * element, counts[at] * element};
  }
  uint64_t max_size(const uint64_t* counts) const {
    return counts == nullptr ? 0 : *std::max_element(counts, counts + world_size) * element;
  }
};

}  // namespace backplane::shm
