// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <utility>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"
#include "schedule/ring.hpp"

namespace backplane::core {

// Thakur, Rabenseifner, Gropp 2005, section 4.5. With P the largest power of two up to W, the first 2 * (W - P) ranks
// *fold* in pairs: the even one hands its input to the odd one and waits for the result. The P ranks left are the
// *cores*, numbered in the order of their ranks. Each exchange combines two neighbouring runs of ranks, the lower one
// on the left, on both sides alike: so all ranks have the same bits even if the operation does not commute.
Schedule recursive_doubling_all_reduce(const Problem& problem) {
  const int32_t rank = problem.rank;
  const auto cores = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(problem.world_size)));
  const int32_t folds = problem.world_size - cores;
  const bool folded = rank < 2 * folds;
  const Region sum = output(0, problem.count);
  const Region arrived = scratch(0, problem.count);
  Builder builder;
  if (folded && rank % 2 == 0) {
    builder.send(rank + 1, input(0, problem.count));
    builder.end_round();
    builder.recv(rank + 1, sum);
    return std::move(builder).finish();
  }
  builder.copy(sum, input(0, problem.count));
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

// Of much data a piece of about so many bytes per rank goes around at a time: small enough to stay in a cache from its
// arrival to its reduction, large enough to make little of what a message costs.
constexpr uint64_t kPieceBytes = 512 * 1024;

// An even number of slices if there is more than one, because they travel in pairs.
int32_t slices_of(const Problem& problem) {
  const uint64_t slice_bytes = kPieceBytes * static_cast<uint64_t>(problem.world_size);
  const uint64_t pairs = problem.count * problem.element_size / (2 * slice_bytes);
  return problem.count * problem.element_size <= slice_bytes ? 1
                                                             : static_cast<int32_t>(2 * std::max<uint64_t>(pairs, 1));
}

// Slices of equal size but for the first, which grows with their number: ranks that disagree about the count, or the
// size of an element, then exchange a message of another length than expected before any of them can be done. By so
// much per slice and rank that no rounding hides it.
class Slices {
 public:
  explicit Slices(const Problem& problem)
      : size_(slices_of(problem)),
        more_(size_ == 1 ? 0 : kMarkBytes / problem.element_size * static_cast<uint64_t>(size_ * problem.world_size)),
        rest_(Blocks::balanced(problem.count - more_, size_)) {}
  int32_t size() const { return size_; }
  uint64_t count(int32_t slice) const { return rest_.count(slice) + (slice == 0 ? more_ : 0); }
  uint64_t offset(int32_t slice) const { return slice == 0 ? 0 : rest_.offset(slice) + more_; }

 private:
  static constexpr uint64_t kMarkBytes = 64;
  const int32_t size_;
  const uint64_t more_;
  const Blocks rest_;
};

}  // namespace

// Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009). A chunk is combined
// along one chain of ranks, and the all_gather copies its result: so all ranks have the same bits.
//
// Much data is cut into slices, each of which goes around by itself. The rounds of two slices alternate, so that the
// messages of one can travel while the other is reduced; after them come the next two, in the same scratch.
Schedule ring_all_reduce(const Problem& problem) {
  const Slices slices(problem);
  const int32_t count = slices.size();
  const uint64_t scratch_of_one = ring_scratch(problem, Blocks::balanced(slices.count(0), problem.world_size));
  const int32_t hops = problem.world_size - 1;
  Builder builder;
  if (hops == 0) builder.copy(output(0, problem.count), input(0, problem.count));
  for (int32_t first = 0; first < count; first += 2) {
    for (int32_t hop = 0; hop < 2 * hops; ++hop) {
      for (int32_t slice = first; slice < std::min(first + 2, count); ++slice) {
        const Blocks chunks = Blocks::balanced(slices.count(slice), problem.world_size, slices.offset(slice));
        const Region own = chunks.in(Where::kOutput, problem.rank);
        const uint64_t scratch_at = slice % 2 == 0 ? 0 : scratch_of_one;
        if (hop < hops) {
          ring_reduce_scatter_hop(builder, problem, chunks, own, scratch_at, hop);
        } else {
          ring_all_gather_hop(builder, problem, chunks, hop - hops);
        }
      }
    }
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
