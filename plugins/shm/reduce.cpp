// SPDX-License-Identifier: Apache-2.0
//
// The collectives that reduce.
#include <algorithm>
#include <cstring>
#include <utility>

#include "call.hpp"
#include "collectives.hpp"

namespace backplane::shm {
namespace {

// Up to so many bytes from all ranks together, each rank reduces everything for itself.
constexpr uint64_t kReduceAlone = UINT64_C(64) << 10;

// From so many bytes on, the root of two ranks reduces everything, and the root of a crowd.
constexpr uint64_t kReduceByRoot = UINT64_C(128) << 10;
constexpr uint64_t kReduceByRootOfCrowd = UINT64_C(16) << 10;
// Up to so many the root of two reads where they are lent; beyond, memory is the limit, and staging has both processors
// ask for it.
constexpr uint64_t kLendToRoot = UINT64_C(1) << 20;

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

template <typename InputOf>
void Collectives::combine_all(const Call& call, std::byte* out, uint64_t size, const InputOf& input) {
  scalars_.clear();
  for (int32_t rank = 0; call.scalar != nullptr && rank < world_size_; ++rank) {
    scalars_.push_back(lending_.scalar(rank));
  }
  in_parts(call, size, [&](uint64_t begin, uint64_t end) {
    for (int32_t rank = 0; rank < world_size_; ++rank) inputs_[static_cast<size_t>(rank)] = input(rank) + begin;
    reductions_.reduce(call.op.dtype, call.op.reduce_op, out + begin, inputs_, scalars_, (end - begin) / call.element);
  });
}

void Collectives::all_reduce(const Call& call) {
  const bool here = call.op.kind == BP_ALL_REDUCE || rank_ == call.root;
  const uint64_t size = call.input.size;
  if (size == 0) return;
  if (size <= kSlotSize && size * static_cast<uint64_t>(world_size_) <= kReduceAlone) {
    reduce_small(call, here);
  } else if (call.op.kind == BP_REDUCE &&
             (is_crowd_ ? size >= kReduceByRootOfCrowd : world_size_ == 2 && size >= kReduceByRoot)) {
    reduce_at_root(call, here);
  } else {
    reduce_large(call, here);
  }
}

// `here`: this rank wants the result.
void Collectives::reduce_small(const Call& call, bool here) {
  const uint64_t size = call.input.size;
  const bool scales = call.scalar != nullptr;
  const uint64_t shown = scales ? kSlotSize : size;  // the line is needed for scalars
  const uint32_t step = steps_.begin(call.passage);
  if (scales) lending_.offer(nullptr, nullptr, 0, call.scalar, call.element);
  if (scales) lending_.show(step);
  copy(steps_.mine(step, shown), call.input.data, size);
  steps_.show(step, call.passage);
  if (!here) return;
  if (scales) lending_.hear_all(step, {}, call.passage);
  if (world_size_ == 2 && !scales && !call.averages) {  // the shortest way there is
    const std::byte* const theirs = steps_.see(1 - rank_, step, size, call.passage);
    reductions_.combine(call.op.dtype, call.op.reduce_op, call.output.data, rank_ == 0 ? call.input.data : theirs,
                        rank_ == 0 ? theirs : call.input.data, call.op.input.count);
    return steps_.claim_next(size);
  }
  combine_all(call, call.output.data, size, [&](int32_t rank) {
    return rank == rank_ ? call.input.data : steps_.see(rank, step, shown, call.passage);
  });
  steps_.claim_next(size);
}

// The root reduces all of it, while the others copy the next piece: together they touch each byte less often than if
// each had a share.
void Collectives::reduce_at_root(const Call& call, bool here) {
  const uint64_t size = call.input.size;
  const uint64_t stride = part_of_slot(1, (size + 1) / 2);
  const bool lends = !here && (is_crowd_ || size <= kLendToRoot);
  lending_.offer(lends ? call.input.data : nullptr, nullptr, size, call.scalar, call.element);
  const bool shows = !here && lending_.input(rank_) == nullptr;
  const auto show = [&](uint64_t offset) {
    const uint32_t step = steps_.begin(call.passage);
    if (offset == 0) lending_.show(step);
    if (shows) {
      copy(steps_.mine(step, kSlotSize), call.input.data + offset, std::min(stride, size - offset));
    }
    steps_.show(step, call.passage);
    return step;
  };
  uint32_t step = show(0);
  for (uint64_t offset = 0; offset < size; offset += stride) {
    const uint32_t next = size - offset > stride ? show(offset + stride) : 0;
    if (offset == 0) lending_.hear_all(step, {size, 0, false, call.alignment()}, call.passage);
    const auto input = [&](int32_t rank) {
      if (rank == rank_) return call.input.data + offset;
      if (lending_.input(rank) != nullptr) return lending_.input(rank) + offset;
      return steps_.see(rank, step, kSlotSize, call.passage);
    };
    if (here) combine_all(call, call.output.data + offset, std::min(stride, size - offset), input);
    step = next;
  }
  return_loans(call, call.root);
}

// Each piece takes two steps: all show it but for the share that is their own, and then each shows, in the same place,
// the result of that share. A rank that lends its input shows nothing but results.
void Collectives::reduce_large(const Call& call, bool here) {
  const uint64_t size = call.input.size;
  const bool is_for_all = call.op.kind == BP_ALL_REDUCE;
  const bool alone = here && !is_for_all;  // nobody else wants the share that this rank reduces
  lending_.offer(call.input.data, is_for_all ? call.output.data : nullptr, size, call.scalar, call.element);
  const bool lends = lending_.input(rank_) != nullptr;
  const auto show = [this, &call, size, lends](uint64_t offset) {
    const uint32_t step = steps_.begin(call.passage);
    std::byte* const place = steps_.mine(step, kSlotSize);
    const uint64_t piece = std::min<uint64_t>(kSlotSize, size - offset);
    const Share own(piece, rank_, world_size_);
    if (offset == 0) lending_.show(step);
    if (!lends) {
      copy(place, call.input.data + offset, own.begin);
      copy(place + own.end, call.input.data + offset + own.end, piece - own.end);
    }
    steps_.show(step, call.passage);
    return step;
  };
  uint32_t step = show(0);
  const bool lends_all = lends && lending_.output(rank_) != nullptr;
  const Lending::Wanted all_of_it = {size, 0, false, call.alignment()};
  if (lends_all) {  // and perhaps so do all
    lending_.hear_all(step, all_of_it, call.passage);
    if (lending_.all()) return all_reduce_directly(call);
  }
  for (uint64_t offset = 0; offset < size; offset += kSlotSize) {
    const uint32_t next = size - offset > kSlotSize ? show(offset + kSlotSize) : 0;
    if (offset == 0 && !lends_all) lending_.hear_all(step, all_of_it, call.passage);
    const uint64_t piece = std::min<uint64_t>(kSlotSize, size - offset);
    const Share own(piece, rank_, world_size_);
    const uint32_t results = steps_.begin(call.passage);
    std::byte* const result = alone ? call.output.data + offset : steps_.mine(step, kSlotSize);
    combine_all(call, result + own.begin, own.size(), [&](int32_t rank) {
      if (rank == rank_) return call.input.data + offset + own.begin;
      if (lending_.input(rank) != nullptr) return lending_.input(rank) + offset + own.begin;
      return steps_.see(rank, step, kSlotSize, call.passage) + own.begin;
    });
    if (is_for_all && size - offset <= kSlotSize) lending_.check_loans();  // the others wait for these results
    steps_.show(results, call.passage);
    const auto copy_out = [&](int32_t rank) {
      const Share share(piece, rank, world_size_);
      steps_.see(rank, results, 0, call.passage);
      const std::byte* const from = steps_.see(rank, step, kSlotSize, call.passage);
      std::memcpy(call.output.data + offset + share.begin, from + share.begin, share.size());
    };
    if (here) {
      if (!alone) copy_out(rank_);
      std::for_each(others_.begin(), others_.end(), copy_out);
    }
    step = next;
  }
  if (!is_for_all) return_loans(call);  // else whoever has all results knows that his input has been read
}

// All inputs and outputs lie where all can reach them: each rank reduces its share of the whole, and writes it into all
// outputs. Only whole pages of the others: what else lies in the first and the last one is none of this collective's
// business, so that these could not be taken back (Lending::take_back). Their owner fetches those ends himself.
void Collectives::all_reduce_directly(const Call& call) {
  const uint64_t size = call.input.size;
  const Share own(size, rank_, world_size_);
  in_parts(call, own.size(), [&](uint64_t from, uint64_t to) {
    const uint64_t begin = own.begin + from;
    const uint64_t end = own.begin + to;
    combine_all(call, call.output.data + begin, end - begin,
                [&](int32_t rank) { return lending_.input(rank) + begin; });
    for (const int32_t rank : others_) {
      const Pages theirs(lending_.output(rank), size);
      const uint64_t first = std::max(begin, theirs.begin);
      const uint64_t last = std::min(end, theirs.end);
      if (first < last) std::memcpy(lending_.output(rank) + first, call.output.data + first, last - first);
    }
  });
  bool is_whole = true;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    is_whole = is_whole && Pages(lending_.output(rank), size).size() == size;
  }
  lending_.check_loans();
  meet(call);
  if (is_whole) return;
  const Pages mine(call.output.data, size);
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    const Share share(size, rank, world_size_);
    for (const auto& [begin, end] : {std::pair(share.begin, std::min(share.end, mine.begin)),
                                     std::pair(std::max(share.begin, mine.end), share.end)}) {
      if (rank != rank_ && begin < end) {
        std::memcpy(call.output.data + begin, lending_.output(rank) + begin, end - begin);
      }
    }
  }
  lending_.check_loans();
  meet(call);
}

// Each rank shows a part of each block but its own; one that lends its input shows nothing.
void Collectives::reduce_scatter(const Call& call) {
  const auto ranks = static_cast<uint64_t>(world_size_);
  const uint64_t most = call.varies ? call.most_in() : call.output.size;
  const bool small = most <= kLineData / ranks && call.scalar == nullptr;  // else the line is needed for that
  const uint64_t stride = small ? most : part_of_slot(ranks - 1, most);
  const uint64_t shown = small ? most * ranks : kSlotSize;
  const bool hears = most * ranks >= Lending::kWorthIt || call.scalar != nullptr;
  if (hears) lending_.offer(call.input.data, nullptr, call.input.size, call.scalar, call.element);
  const bool lends = lending_.input(rank_) != nullptr;
  const auto hear = [&](uint32_t step) {
    const uint64_t before = call.varies ? 0 : static_cast<uint64_t>(rank_) * most;
    if (hears) {
      lending_.hear_all(step, {call.output.size, before, call.varies, call.alignment()}, call.passage);
    }
  };
  const auto show = [&](uint64_t offset) {
    const uint32_t step = steps_.begin(call.passage);
    std::byte* const place = steps_.mine(step, shown);
    if (hears && offset == 0) lending_.show(step, call.op.in_counts, call.op.in_displs, call.element);
    for (int32_t to = 0; !lends && to < world_size_; ++to) {
      const Block block = call.block(to);
      if (to == rank_ || offset >= block.size) continue;
      copy(place + part_for(to, rank_) * stride, block.data + offset, std::min(stride, block.size - offset));
    }
    steps_.show(step, call.passage);
    return step;
  };
  uint32_t step = most > 0 ? show(0) : 0;
  if (lends) hear(step);
  const uint64_t pieces_end = lends && lending_.all_inputs() ? stride : most;
  for (uint64_t offset = 0; offset < pieces_end; offset += stride) {
    const uint32_t next = pieces_end - offset > stride ? show(offset + stride) : 0;
    if (!lends && offset == 0) hear(step);
    const uint64_t left = call.output.size > offset ? call.output.size - offset : 0;
    const uint64_t piece = pieces_end == most ? std::min(stride, left) : left;  // all lend: all of it at once
    combine_all(call, call.output.data + offset, piece, [&](int32_t rank) {
      if (rank == rank_) return call.block(rank).data + offset;
      if (lending_.input(rank) != nullptr) return lending_.input(rank) + offset;
      return steps_.see(rank, step, shown, call.passage) + part_for(rank_, rank) * stride;
    });
    step = next;
  }
  return_loans(call);
}

}  // namespace backplane::shm
