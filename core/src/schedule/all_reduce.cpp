// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <utility>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"
#include "schedule/ring.hpp"

namespace backplane::core {

// Thakur, Rabenseifner, Gropp 2005, section 4.5. P is the largest power of two up to W. The first 2 * (W - P) ranks
// *fold* in pairs: the even rank sends its input to the odd one and waits for the result. The remaining P ranks, the
// *cores*, are numbered in the order of their ranks. Each exchange combines two adjacent ranges of ranks, with the
// lower range on the left on both sides, so that all ranks get the same bits even if the operation does not commute.
Schedule recursive_doubling_all_reduce(const CollectiveSpec& spec) {
  const int32_t rank = spec.rank;
  const auto cores = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(spec.world_size)));
  const int32_t folds = spec.world_size - cores;
  const bool folded = rank < 2 * folds;
  const Region sum = output(0, spec.count);
  const Region arrived = scratch(0, spec.count);
  Builder builder;
  if (folded && rank % 2 == 0) {
    builder.send(rank + 1, input(0, spec.count));
    builder.end_round();
    builder.recv(rank + 1, sum);
    return std::move(builder).finish();
  }
  builder.copy(sum, input(0, spec.count));
  builder.end_round();
  if (folded) {
    builder.recv(rank - 1, arrived);
    builder.reduce(sum, arrived, Order::kSourceFirst);
    builder.end_round();
  }
  const int32_t core = folded ? rank / 2 : rank - folds;
  for (int64_t distance = 1; distance < cores; distance *= 2) {
    const int32_t other = core ^ static_cast<int32_t>(distance);
    const int32_t peer = other < folds ? 2 * other + 1 : other + folds;
    builder.send(peer, sum);
    builder.recv(peer, arrived);
    builder.reduce(sum, arrived, peer < rank ? Order::kSourceFirst : Order::kTargetFirst, 2 * distance == cores);
    builder.end_round();
  }
  if (folded) builder.send(rank - 1, sum);
  return std::move(builder).finish();
}

namespace {

// Bytes per rank of a slice of large data: small enough to stay in a cache from arrival to reduction, and large enough
// to make the cost per message insignificant.
constexpr uint64_t kSliceBytes = 512 * 1024;

// The number of slices: 1 or even, because slices travel in pairs.
int32_t slices_of(const CollectiveSpec& spec) {
  const uint64_t slice_bytes = kSliceBytes * static_cast<uint64_t>(spec.world_size);
  const uint64_t pairs = spec.count * spec.element_size / (2 * slice_bytes);
  return spec.count * spec.element_size <= slice_bytes ? 1 : static_cast<int32_t>(2 * std::max<uint64_t>(pairs, 1));
}

// Slices of equal size, except that the first is larger, in proportion to their number. Ranks that disagree about the
// count or the element size therefore get a message of an unexpected length before any of them is done. The extra size
// per slice and rank exceeds any rounding.
class Slices {
 public:
  explicit Slices(const CollectiveSpec& spec)
      : size_(slices_of(spec)),
        extra_(size_ == 1 ? 0 : kExtraBytes / spec.element_size * static_cast<uint64_t>(size_ * spec.world_size)),
        rest_(Blocks::balanced(spec.count - extra_, size_)) {}
  int32_t size() const { return size_; }
  uint64_t count(int32_t slice) const { return rest_.count(slice) + (slice == 0 ? extra_ : 0); }
  uint64_t offset(int32_t slice) const { return slice == 0 ? 0 : rest_.offset(slice) + extra_; }

 private:
  static constexpr uint64_t kExtraBytes = 64;
  const int32_t size_;
  const uint64_t extra_;
  const Blocks rest_;
};

}  // namespace

// Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009). Each chunk is
// combined along one chain of ranks, and the all_gather copies the result, so that all ranks get the same bits.
//
// Large data is cut into slices, each with its own ring passes. The rounds of two slices alternate, so that messages of
// one travel while the other is reduced. The next two slices use the same scratch.
Schedule ring_all_reduce(const CollectiveSpec& spec) {
  const Slices slices(spec);
  const int32_t count = slices.size();
  const uint64_t slice_scratch = ring_scratch(spec, Blocks::balanced(slices.count(0), spec.world_size));
  const int32_t hops = spec.world_size - 1;
  Builder builder;
  if (hops == 0) builder.copy(output(0, spec.count), input(0, spec.count));
  for (int32_t first = 0; first < count; first += 2) {
    for (int32_t hop = 0; hop < 2 * hops; ++hop) {
      for (int32_t slice = first; slice < std::min(first + 2, count); ++slice) {
        const Blocks chunks = Blocks::balanced(slices.count(slice), spec.world_size, slices.offset(slice));
        const Region own = chunks.in(BufferRole::kOutput, spec.rank);
        const uint64_t scratch_at = slice % 2 == 0 ? 0 : slice_scratch;
        if (hop < hops) {
          ring_reduce_scatter_hop(builder, spec, chunks, own, scratch_at, hop);
        } else {
          ring_all_gather_hop(builder, spec, chunks, hop - hops);
        }
      }
    }
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
