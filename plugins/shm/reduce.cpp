// SPDX-License-Identifier: Apache-2.0
//
// The collectives that reduce.
#include <algorithm>
#include <cstring>

#include "call.hpp"
#include "collectives.hpp"

namespace backplane::shm {
namespace {

// Up to so many bytes from all ranks together, each rank reduces everything for itself.
constexpr uint64_t kReduceAlone = UINT64_C(32) << 10;

// Rank r's share of `size` bytes: whole cache lines, as even as that allows.
struct Share {
  Share(uint64_t size, int32_t rank, int32_t world_size) {
    const auto ranks = static_cast<uint64_t>(world_size);
    const uint64_t most = ((size + ranks - 1) / ranks + 63) / 64 * 64;
    begin = std::min(size, most * static_cast<uint64_t>(rank));
    end = std::min(size, begin + most);
  }
  uint64_t size() const { return end - begin; }
  uint64_t begin;
  uint64_t end;
};

}  // namespace

template <typename Part>
void Collectives::combine_all(const Call& call, std::byte* out, uint64_t size, const Part& part) const {
  const uint64_t count = size / call.element;
  if (count == 0) return;
  const std::byte* const first = part(0);
  reductions_.combine(call.op.dtype, call.op.reduce_op, out, first, part(1), count);
  for (int32_t rank = 2; rank < world_size_; ++rank) {
    reductions_.combine(call.op.dtype, call.op.reduce_op, out, out, part(rank), count);
  }
}

void Collectives::all_reduce(const Call& call) {
  const bool here = call.op.kind == BP_ALL_REDUCE || rank_ == call.root;
  const uint64_t size = call.input.size;
  if (size == 0) return;
  if (size <= kSlotSize && size * static_cast<uint64_t>(world_size_) <= kReduceAlone) {
    reduce_small(call, here);
  } else {
    reduce_large(call, here);
  }
}

// `here`: this rank wants the result.
void Collectives::reduce_small(const Call& call, bool here) {
  const uint64_t size = call.input.size;
  const uint32_t step = steps_.begin(call.passage);
  std::memcpy(steps_.mine(step, size), call.input.data, size);
  steps_.show(step, call.passage);
  if (!here) return;
  // The own part is nearer in the input, unless the output overwrites it before its turn.
  const bool from_input = rank_ < 2 || call.output.data != call.input.data;
  combine_all(call, call.output.data, size, [&](int32_t rank) {
    if (rank == rank_ && from_input) return call.input.data;
    return steps_.see(rank, step, size, call.passage);
  });
}

// Each piece takes two steps: all show it but for the share that is their own, and then each shows, in the same place,
// the result of that share.
void Collectives::reduce_large(const Call& call, bool here) {
  const uint64_t size = call.input.size;
  const auto show = [this, &call, size](uint64_t offset) {
    const uint32_t step = steps_.begin(call.passage);
    std::byte* const place = steps_.mine(step, kSlotSize);
    const uint64_t piece = std::min<uint64_t>(kSlotSize, size - offset);
    const Share own(piece, rank_, world_size_);
    std::memcpy(place, call.input.data + offset, own.begin);
    std::memcpy(place + own.end, call.input.data + offset + own.end, piece - own.end);
    steps_.show(step, call.passage);
    return step;
  };
  uint32_t step = show(0);
  for (uint64_t offset = 0; offset < size; offset += kSlotSize) {
    const uint32_t next = size - offset > kSlotSize ? show(offset + kSlotSize) : 0;
    const uint64_t piece = std::min<uint64_t>(kSlotSize, size - offset);
    const Share own(piece, rank_, world_size_);
    const uint32_t results = steps_.begin(call.passage);
    combine_all(call, steps_.mine(step, kSlotSize) + own.begin, own.size(), [&](int32_t rank) {
      if (rank == rank_) return call.input.data + offset + own.begin;
      return steps_.see(rank, step, kSlotSize, call.passage) + own.begin;
    });
    steps_.show(results, call.passage);
    for (int32_t i = 0; here && i < world_size_; ++i) {
      const int32_t rank = (rank_ + i) % world_size_;
      const Share share(piece, rank, world_size_);
      steps_.see(rank, results, 0, call.passage);
      const std::byte* const from = steps_.see(rank, step, kSlotSize, call.passage);
      std::memcpy(call.output.data + offset + share.begin, from + share.begin, share.size());
    }
    step = next;
  }
}

// Each rank shows a part of each block, its own as well, for the output may be the input's own block.
void Collectives::reduce_scatter(const Call& call) {
  const auto ranks = static_cast<uint64_t>(world_size_);
  const uint64_t most = call.varies ? call.most_in() : call.output.size;
  const bool small = most <= kLineData / ranks;
  const uint64_t stride = small ? most : kSlotSize / ranks / 64 * 64;
  const uint64_t shown = small ? most * ranks : kSlotSize;
  const auto show = [&](uint64_t offset) {
    const uint32_t step = steps_.begin(call.passage);
    std::byte* const place = steps_.mine(step, shown);
    for (int32_t to = 0; to < world_size_; ++to) {
      const Block block = call.block(to);
      if (offset >= block.size) continue;
      std::memcpy(place + static_cast<uint64_t>(to) * stride, block.data + offset,
                  std::min(stride, block.size - offset));
    }
    steps_.show(step, call.passage);
    return step;
  };
  uint32_t step = most > 0 ? show(0) : 0;
  for (uint64_t offset = 0; offset < most; offset += stride) {
    const uint32_t next = most - offset > stride ? show(offset + stride) : 0;
    const uint64_t left = call.output.size > offset ? call.output.size - offset : 0;
    combine_all(call, call.output.data + offset, std::min(stride, left), [&](int32_t rank) {
      return steps_.see(rank, step, shown, call.passage) + static_cast<uint64_t>(rank_) * stride;
    });
    step = next;
  }
}

}  // namespace backplane::shm
