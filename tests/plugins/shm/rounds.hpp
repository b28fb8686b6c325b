// SPDX-License-Identifier: Apache-2.0
//
// Collectives of all kinds with buffers in heaps or elsewhere, checked.
#pragma once

#include <algorithm>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "heaps.hpp"
#include "support/optimized.hpp"

namespace backplane::shm::test {

// Elements of a block; three blocks fit into one step.
constexpr uint64_t kBlockCount = 5'000;

constexpr uint32_t kKinds[] = {BP_BROADCAST,  BP_REDUCE,          BP_ALL_REDUCE, BP_GATHER,      BP_GATHERV,
                               BP_SCATTER,    BP_SCATTERV,        BP_ALL_GATHER, BP_ALL_GATHERV, BP_REDUCE_SCATTER,
                               BP_ALL_TO_ALL, BP_REDUCE_SCATTERV, BP_ALL_TO_ALLV};

// Location of the buffers: all in heaps; also in place where possible; randomly in the heap (if any) and in place; none
// in heaps.
enum class Placement { kHeap, kHeapInPlace, kAny, kOrdinary };

struct Buffer {
  Buffer(Rank& rank, uint64_t count, bool in_heap) : plain(in_heap ? 0 : count) {
    if (in_heap) own.emplace(*rank.own_heap, std::max<uint64_t>(1, count));
    numbers = {in_heap ? own->data() : plain.data(), count};
    std::fill(numbers.begin(), numbers.end(), kUntouched);
  }

  std::vector<uint32_t> plain;
  std::optional<Numbers> own;
  std::span<uint32_t> numbers;
};

// One block per rank, with gaps if counts vary.
struct Blocks {
  Blocks(std::vector<uint64_t> sizes, uint64_t gap) : counts(std::move(sizes)), displs(counts.size()) {
    for (size_t i = 0; i < counts.size(); ++i) {
      displs[i] = total;
      total += counts[i] + gap;
    }
  }
  std::vector<uint64_t> counts;
  std::vector<uint64_t> displs;
  uint64_t total = 0;
};

// first, first + step, ...
struct Sequence {
  uint32_t first = 0;
  uint32_t step = 0;
};
BACKPLANE_TEST_OPTIMIZED inline void write_sequence(uint32_t* numbers, uint64_t count, Sequence sequence) {
  for (uint64_t i = 0; i < count; ++i) numbers[i] = sequence.first + static_cast<uint32_t>(i) * sequence.step;
}
// The index of the first number that differs from the sequence; `count` if none does.
BACKPLANE_TEST_OPTIMIZED inline uint64_t first_other(const uint32_t* numbers, uint64_t count, Sequence sequence) {
  uint64_t i = 0;
  while (i < count && numbers[i] == sequence.first + static_cast<uint32_t>(i) * sequence.step) ++i;
  return i;
}

class CollectiveRound {
 public:
  CollectiveRound(Rank& rank, uint64_t number, uint64_t max_count, Placement placement, std::mt19937_64& random)
      : rank_(rank), number_(number), max_count_(max_count), placement_(placement), random_(random) {}

  void run(uint32_t kind) {
    kind_ = kind;
    varies_ = kind == BP_GATHERV || kind == BP_SCATTERV || kind == BP_ALL_GATHERV || kind == BP_REDUCE_SCATTERV ||
              kind == BP_ALL_TO_ALLV;
    const bool many_in =
        is(BP_SCATTER, BP_SCATTERV) || is(BP_REDUCE_SCATTER, BP_REDUCE_SCATTERV) || is(BP_ALL_TO_ALL, BP_ALL_TO_ALLV);
    const bool many_out =
        is(BP_GATHER, BP_GATHERV) || is(BP_ALL_GATHER, BP_ALL_GATHERV) || is(BP_ALL_TO_ALL, BP_ALL_TO_ALLV);
    const auto root = static_cast<int32_t>(number_ % static_cast<uint64_t>(rank_.size));
    const bool gives = root == rank_.id || !(is(BP_SCATTER, BP_SCATTERV) || kind == BP_BROADCAST);
    const bool gets = root == rank_.id || !(is(BP_GATHER, BP_GATHERV) || kind == BP_REDUCE);
    const Blocks in = blocks(gives, many_in, true);
    const Blocks out = blocks(gets, many_out, false);
    const Buffer input(rank_, in.total, in_heap());
    const Buffer output(rank_, out.total, in_heap());
    std::span<uint32_t> from = input.numbers;
    std::span<uint32_t> to = output.numbers;
    if (gives && gets && is_in_place()) {
      if (many_in && !many_out) {
        to = from.subspan(in.displs[at(rank_.id)], in.counts[at(rank_.id)]);
      } else {
        from = many_out && !many_in ? to.subspan(out.displs[at(rank_.id)], out.counts[at(rank_.id)]) : to;
      }
    }
    for (int32_t other = 0; other < static_cast<int32_t>(in.counts.size()); ++other) {
      write_sequence(from.data() + in.displs[at(other)], in.counts[at(other)], given(rank_.id, other));
    }
    bp_op op = {};
    op.struct_size = sizeof op;
    op.kind = kind;
    op.dtype = BP_U32;
    op.root = root;
    op.input = buffer(from);
    op.output = buffer(to);
    if (!gives) op.input = {};
    if (!gets) op.output = {};
    if (varies_ && many_in && gives) op.in_counts = in.counts.data(), op.in_displs = in.displs.data();
    if (varies_ && many_out && gets) op.out_counts = out.counts.data(), op.out_displs = out.displs.data();
    LazyDeadline deadline(Rank::kLong);
    rank_.collectives.run(op, deadline);
    start_incoming(out, to, many_out, root);
  }

 private:
  static size_t at(int32_t rank) { return static_cast<size_t>(rank); }
  bool is(uint32_t one, uint32_t other) const { return kind_ == one || kind_ == other; }
  static bp_buffer buffer(std::span<uint32_t> numbers) { return {numbers.data(), numbers.size(), BP_HOST, 0}; }
  // Broadcast is always in place, all_to_allv never.
  bool is_in_place() {
    if (kind_ == BP_BROADCAST) return true;
    if (kind_ == BP_ALL_TO_ALLV) return false;
    return placement_ == Placement::kHeapInPlace || (placement_ == Placement::kAny && random_() % 2 == 0);
  }
  bool in_heap() {
    if (placement_ == Placement::kHeap || placement_ == Placement::kHeapInPlace) return true;
    return placement_ == Placement::kAny && rank_.own_heap != nullptr && random_() % 2 == 0;
  }
  // Elements that `from` sends to `to`. In reductions all ranks send equally many.
  uint64_t count(int32_t from, int32_t to) const {
    if (!varies_) return max_count_;
    if (kind_ == BP_GATHERV || kind_ == BP_ALL_GATHERV) to = 0;
    if (kind_ == BP_SCATTERV || kind_ == BP_REDUCE_SCATTERV) from = 0;
    return max_count_ * static_cast<uint64_t>((from + 2 * to + static_cast<int32_t>(number_)) % 3) / 2;
  }
  Blocks blocks(bool any, bool many, bool is_input) const {
    std::vector<uint64_t> sizes;
    for (int32_t other = 0; any && other < (many ? rank_.size : 1); ++other) {
      sizes.push_back(is_input ? count(rank_.id, other) : count(other, rank_.id));
    }
    return {std::move(sizes), varies_ && many ? UINT64_C(3) : 0};
  }
  Sequence given(int32_t from, int32_t to) const {
    return {static_cast<uint32_t>(number_ * 7919 + at(from) * 1'000'003 + at(to) * 10'007), 31};
  }
  Sequence expected(int32_t from, int32_t root) const {
    if (kind_ == BP_BROADCAST) return given(root, 0);
    if (is(BP_SCATTER, BP_SCATTERV)) return given(root, rank_.id);
    if (is(BP_ALL_TO_ALL, BP_ALL_TO_ALLV)) return given(from, rank_.id);
    if (is(BP_GATHER, BP_GATHERV) || is(BP_ALL_GATHER, BP_ALL_GATHERV)) return given(from, 0);
    const bool each = is(BP_REDUCE_SCATTER, BP_REDUCE_SCATTERV);
    Sequence sum;
    for (int32_t rank = 0; rank < rank_.size; ++rank) {
      const Sequence part = given(rank, each ? rank_.id : 0);
      sum = {sum.first + part.first, sum.step + part.step};
    }
    return sum;
  }
  void start_incoming(const Blocks& out, std::span<const uint32_t> numbers, bool many, int32_t root) const {
    uint64_t next = 0;
    for (size_t block = 0; block < out.counts.size(); ++block) {
      for (; next < out.displs[block]; ++next) ASSERT_EQ(numbers[next], kUntouched) << "kind " << kind_;
      const uint64_t count = out.counts[block];
      const uint64_t equal =
          first_other(numbers.data() + next, count, expected(many ? static_cast<int32_t>(block) : 0, root));
      ASSERT_EQ(equal, count) << "is the first wrong element of block " << block << ", kind " << kind_;
      next += count;
    }
    for (; next < numbers.size(); ++next) ASSERT_EQ(numbers[next], kUntouched) << "kind " << kind_;
  }

  Rank& rank_;
  const uint64_t number_;
  const uint64_t max_count_;  // elements per block
  const Placement placement_;
  std::mt19937_64& random_;  // this rank's own
  uint32_t kind_ = 0;
  bool varies_ = false;
};

inline void all_barrier(Rank& rank) {
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = BP_BARRIER;
  LazyDeadline deadline(Rank::kLong);
  rank.collectives.run(op, deadline);
}

}  // namespace backplane::shm::test
