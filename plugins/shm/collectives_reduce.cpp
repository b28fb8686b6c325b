// SPDX-License-Identifier: Apache-2.0
#include "collectives_reduce.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "call.hpp"

namespace backplane::shm {
namespace {

// Up to this many bytes of all ranks together, each rank reduces everything.
constexpr uint64_t kReduceOnAll = UINT64_C(64) << 10;

// From this size on the root of two ranks reduces everything; with more ranks than processors, the root of any number.
constexpr uint64_t kReduceByRoot = UINT64_C(128) << 10;
constexpr uint64_t kReduceByRootOversubscribed = UINT64_C(16) << 10;
// Up to this size the root of two ranks reads exposed inputs. Above it memory bandwidth is the limit, which staging
// uses from both processors.
constexpr uint64_t kZeroCopyToRoot = UINT64_C(1) << 20;

// Rank r's share of `size` bytes, in whole cache lines.
struct Share {
  Share(uint64_t size, int32_t rank, int32_t world_size) {
    const auto ranks = static_cast<uint64_t>(world_size);
    const uint64_t max_size = ((size + ranks - 1) / ranks + 63) / 64 * 64;
    begin = std::min(size, max_size * static_cast<uint64_t>(rank));
    end = std::min(size, begin + max_size);
  }
  uint64_t size() const { return end - begin; }
  uint64_t begin;
  uint64_t end;
};

}  // namespace

// Calls body(begin, end) for parts that stay in the cache. Checks for abort and deadline in between.
template <typename Body>
void ReducingCollectives::in_parts(const Call& call, uint64_t size, const Body& body) const {
  constexpr uint64_t kPart = UINT64_C(16) << 10;
  constexpr uint64_t kBetweenChecks = UINT64_C(1) << 20;
  for (uint64_t begin = 0; begin < size; begin += kPart) {
    if (begin > 0 && begin % kBetweenChecks == 0) steps_.check(call.context);
    body(begin, std::min(size, begin + kPart));
  }
}

// out = input(0) op input(1) op ..., in rank order; an average is divided by the number of ranks. If inputs have
// scalars, zero_copy_ must have learned them. `out` may be this rank's own input.
template <typename InputOf>
void ReducingCollectives::combine_all(const Call& call, std::byte* out, uint64_t size, const InputOf& input) {
  scalars_.clear();
  for (int32_t rank = 0; call.scalar != nullptr && rank < world_size_; ++rank) {
    scalars_.push_back(zero_copy_.scalar(rank));
  }
  in_parts(call, size, [&](uint64_t begin, uint64_t end) {
    for (int32_t rank = 0; rank < world_size_; ++rank) inputs_[static_cast<size_t>(rank)] = input(rank) + begin;
    reductions_.reduce(call.op.dtype, call.op.reduce_op, out + begin, inputs_, scalars_, (end - begin) / call.element);
  });
}

void ReducingCollectives::all_reduce(const Call& call) {
  const bool here = call.op.kind == BP_ALL_REDUCE || rank_ == call.root;
  const uint64_t size = call.input.size;
  if (size == 0) return;
  if (size <= kSlotSize && size * static_cast<uint64_t>(world_size_) <= kReduceOnAll) {
    reduce_on_all(call, here);
  } else if (call.op.kind == BP_REDUCE &&
             (oversubscribed_ ? size >= kReduceByRootOversubscribed : world_size_ == 2 && size >= kReduceByRoot)) {
    reduce_at_root(call, here);
  } else {
    reduce_in_shares(call, here);
  }
}

// `here`: this rank gets the result.
void ReducingCollectives::reduce_on_all(const Call& call, bool here) {
  const uint64_t size = call.input.size;
  const bool scales = call.scalar != nullptr;
  const uint64_t published = scales ? kSlotSize : size;  // the line holds the scalars
  const uint32_t step = steps_.begin(call.context);
  if (scales) zero_copy_.expose(nullptr, nullptr, 0, call.scalar, call.element);
  if (scales) zero_copy_.announce(step);
  copy(steps_.own_data(step, published), call.input.data, size);
  steps_.publish(step, call.context);
  if (!here) return;
  if (scales) zero_copy_.learn_all(step, {}, call.context);
  if (world_size_ == 2 && !scales && !call.averages) {  // fast path
    const std::byte* const theirs = steps_.wait_for(1 - rank_, step, size, call.context);
    reductions_.combine(call.op.dtype, call.op.reduce_op, call.output.data, rank_ == 0 ? call.input.data : theirs,
                        rank_ == 0 ? theirs : call.input.data, call.op.input.count);
    return steps_.prefetch_next(size);
  }
  combine_all(call, call.output.data, size, [&](int32_t rank) {
    return rank == rank_ ? call.input.data : steps_.wait_for(rank, step, published, call.context);
  });
  steps_.prefetch_next(size);
}

// The root reduces everything while the others copy the next piece. Each byte is accessed less often than with shares.
void ReducingCollectives::reduce_at_root(const Call& call, bool here) {
  const uint64_t size = call.input.size;
  const uint64_t stride = part_of_slot(1, (size + 1) / 2);
  const bool exposes = !here && (oversubscribed_ || size <= kZeroCopyToRoot);
  zero_copy_.expose(exposes ? call.input.data : nullptr, nullptr, size, call.scalar, call.element);
  const bool publishes = !here && zero_copy_.input(rank_) == nullptr;
  const auto publish = [&](uint64_t offset) {
    const uint32_t step = steps_.begin(call.context);
    if (offset == 0) zero_copy_.announce(step);
    if (publishes) {
      copy(steps_.own_data(step, kSlotSize), call.input.data + offset, std::min(stride, size - offset));
    }
    steps_.publish(step, call.context);
    return step;
  };
  uint32_t step = publish(0);
  for (uint64_t offset = 0; offset < size; offset += stride) {
    const uint32_t next = size - offset > stride ? publish(offset + stride) : 0;
    if (offset == 0) zero_copy_.learn_all(step, {size, 0, false, call.alignment()}, call.context);
    const auto input = [&](int32_t rank) {
      if (rank == rank_) return call.input.data + offset;
      if (zero_copy_.input(rank) != nullptr) return zero_copy_.input(rank) + offset;
      return steps_.wait_for(rank, step, kSlotSize, call.context);
    };
    if (here) combine_all(call, call.output.data + offset, std::min(stride, size - offset), input);
    step = next;
  }
  zero_copy_.finish(call.context, call.root);
}

// Two steps per piece: each rank publishes all of it except its own share, then the result of its share in the same
// slot. A rank that exposes its input publishes only results.
void ReducingCollectives::reduce_in_shares(const Call& call, bool here) {
  const uint64_t size = call.input.size;
  const bool is_for_all = call.op.kind == BP_ALL_REDUCE;
  const bool alone = here && !is_for_all;  // no other rank needs the result of this share
  zero_copy_.expose(call.input.data, is_for_all ? call.output.data : nullptr, size, call.scalar, call.element);
  const bool exposes = zero_copy_.input(rank_) != nullptr;
  const auto publish = [this, &call, size, exposes](uint64_t offset) {
    const uint32_t step = steps_.begin(call.context);
    std::byte* const slot = steps_.own_data(step, kSlotSize);
    const uint64_t piece = std::min<uint64_t>(kSlotSize, size - offset);
    const Share own(piece, rank_, world_size_);
    if (offset == 0) zero_copy_.announce(step);
    if (!exposes) {
      copy(slot, call.input.data + offset, own.begin);
      copy(slot + own.end, call.input.data + offset + own.end, piece - own.end);
    }
    steps_.publish(step, call.context);
    return step;
  };
  uint32_t step = publish(0);
  const bool exposes_all = exposes && zero_copy_.output(rank_) != nullptr;
  const ZeroCopy::Request all_of_it = {size, 0, false, call.alignment()};
  if (exposes_all) {  // all ranks may
    zero_copy_.learn_all(step, all_of_it, call.context);
    if (zero_copy_.all()) return all_reduce_zero_copy(call);
  }
  for (uint64_t offset = 0; offset < size; offset += kSlotSize) {
    const uint32_t next = size - offset > kSlotSize ? publish(offset + kSlotSize) : 0;
    if (offset == 0 && !exposes_all) zero_copy_.learn_all(step, all_of_it, call.context);
    const uint64_t piece = std::min<uint64_t>(kSlotSize, size - offset);
    const Share own(piece, rank_, world_size_);
    const uint32_t results = steps_.begin(call.context);
    std::byte* const result = alone ? call.output.data + offset : steps_.own_data(step, kSlotSize);
    combine_all(call, result + own.begin, own.size(), [&](int32_t rank) {
      if (rank == rank_) return call.input.data + offset + own.begin;
      if (zero_copy_.input(rank) != nullptr) return zero_copy_.input(rank) + offset + own.begin;
      return steps_.wait_for(rank, step, kSlotSize, call.context) + own.begin;
    });
    if (is_for_all && size - offset <= kSlotSize) zero_copy_.check_revoked();  // other ranks wait for these results
    steps_.publish(results, call.context);
    const auto copy_out = [&](int32_t rank) {
      const Share share(piece, rank, world_size_);
      steps_.wait_for(rank, results, 0, call.context);
      const std::byte* const from = steps_.wait_for(rank, step, kSlotSize, call.context);
      std::memcpy(call.output.data + offset + share.begin, from + share.begin, share.size());
    };
    if (here) {
      if (!alone) copy_out(rank_);
      std::for_each(others_.begin(), others_.end(), copy_out);
    }
    step = next;
  }
  if (!is_for_all) zero_copy_.finish(call.context);  // a rank that has all results knows that its input has been read
}

// All inputs and outputs are accessible in place. Each rank reduces its share of the whole and writes it into all
// outputs; into those of other ranks only whole pages, because other data in the first and last page could not be
// detached on failure (ZeroCopy::revoke). The owner copies these ends itself.
void ReducingCollectives::all_reduce_zero_copy(const Call& call) {
  const uint64_t size = call.input.size;
  const Share own(size, rank_, world_size_);
  in_parts(call, own.size(), [&](uint64_t from, uint64_t to) {
    const uint64_t begin = own.begin + from;
    const uint64_t end = own.begin + to;
    combine_all(call, call.output.data + begin, end - begin,
                [&](int32_t rank) { return zero_copy_.input(rank) + begin; });
    for (const int32_t rank : others_) {
      const Pages theirs(zero_copy_.output(rank), size);
      const uint64_t first = std::max(begin, theirs.begin);
      const uint64_t last = std::min(end, theirs.end);
      if (first < last) std::memcpy(zero_copy_.output(rank) + first, call.output.data + first, last - first);
    }
  });
  bool is_whole = true;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    is_whole = is_whole && Pages(zero_copy_.output(rank), size).size() == size;
  }
  zero_copy_.check_revoked();
  steps_.barrier(call.context);
  if (is_whole) return;
  const Pages mine(call.output.data, size);
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    const Share share(size, rank, world_size_);
    for (const auto& [begin, end] : {std::pair(share.begin, std::min(share.end, mine.begin)),
                                     std::pair(std::max(share.begin, mine.end), share.end)}) {
      if (rank != rank_ && begin < end) {
        std::memcpy(call.output.data + begin, zero_copy_.output(rank) + begin, end - begin);
      }
    }
  }
  zero_copy_.check_revoked();
  steps_.barrier(call.context);
}

// Each rank publishes a part of each block but its own, or nothing if it exposes its input.
void ReducingCollectives::reduce_scatter(const Call& call) {
  const auto ranks = static_cast<uint64_t>(world_size_);
  const uint64_t max_size = call.varies ? call.max_in() : call.output.size;
  const bool small = max_size <= kLineData / ranks && call.scalar == nullptr;  // otherwise the line holds the scalars
  const uint64_t stride = small ? max_size : part_of_slot(ranks - 1, max_size);
  const uint64_t published = small ? max_size * ranks : kSlotSize;
  const bool learns = max_size * ranks >= ZeroCopy::kMinBytes || call.scalar != nullptr;
  if (learns) zero_copy_.expose(call.input.data, nullptr, call.input.size, call.scalar, call.element);
  const bool exposes = zero_copy_.input(rank_) != nullptr;
  const auto learn = [&](uint32_t step) {
    const uint64_t before = call.varies ? 0 : static_cast<uint64_t>(rank_) * max_size;
    if (learns) {
      zero_copy_.learn_all(step, {call.output.size, before, call.varies, call.alignment()}, call.context);
    }
  };
  const auto publish = [&](uint64_t offset) {
    const uint32_t step = steps_.begin(call.context);
    std::byte* const slot = steps_.own_data(step, published);
    if (learns && offset == 0) zero_copy_.announce(step, call.op.in_counts, call.op.in_displs, call.element);
    for (int32_t to = 0; !exposes && to < world_size_; ++to) {
      const Block block = call.block(to);
      if (to == rank_ || offset >= block.size) continue;
      copy(slot + part_for(to, rank_) * stride, block.data + offset, std::min(stride, block.size - offset));
    }
    steps_.publish(step, call.context);
    return step;
  };
  uint32_t step = max_size > 0 ? publish(0) : 0;
  if (exposes) learn(step);
  const uint64_t pieces_end = exposes && zero_copy_.all_inputs() ? stride : max_size;
  for (uint64_t offset = 0; offset < pieces_end; offset += stride) {
    const uint32_t next = pieces_end - offset > stride ? publish(offset + stride) : 0;
    if (!exposes && offset == 0) learn(step);
    const uint64_t left = call.output.size > offset ? call.output.size - offset : 0;
    const uint64_t piece = pieces_end == max_size ? std::min(stride, left) : left;  // all are exposed: in one piece
    combine_all(call, call.output.data + offset, piece, [&](int32_t rank) {
      if (rank == rank_) return call.block(rank).data + offset;
      if (zero_copy_.input(rank) != nullptr) return zero_copy_.input(rank) + offset;
      return steps_.wait_for(rank, step, published, call.context) + part_for(rank_, rank) * stride;
    });
    step = next;
  }
  zero_copy_.finish(call.context);
}

}  // namespace backplane::shm
