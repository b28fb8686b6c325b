// SPDX-License-Identifier: Apache-2.0
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
    builder.reduce(sum, arrived, peer < rank ? Order::kSourceFirst : Order::kTargetFirst);
    builder.end_round();
  }
  if (folded) builder.send(rank - 1, sum);
  return std::move(builder).finish();
}

// Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009). A chunk is combined
// along one chain of ranks, and the all_gather copies its result: so all ranks have the same bits.
Schedule ring_all_reduce(const Problem& problem) {
  const Blocks chunks = Blocks::balanced(problem.count, problem.world_size);
  Builder builder;
  ring_reduce_scatter(builder, problem, chunks, chunks.in(Where::kOutput, problem.rank));
  builder.end_round();
  ring_all_gather(builder, problem, chunks);
  return std::move(builder).finish();
}

}  // namespace backplane::core
