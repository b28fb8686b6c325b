// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"
#include "schedule/ring.hpp"

namespace backplane::core {

// Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
// message-passing systems" (1997), section 4. Scratch holds the blocks of this rank, the next one, and so on; every
// round doubles them.
Schedule bruck_all_gather(const Problem& problem) {
  const uint64_t count = problem.count;
  const auto world_size = static_cast<uint64_t>(problem.world_size);
  const auto rank = static_cast<uint64_t>(problem.rank);
  Builder builder;
  builder.copy(scratch(0, count), input(0, count));
  builder.end_round();
  for (uint64_t have = 1; have < world_size; have *= 2) {
    const uint64_t more = std::min(have, world_size - have) * count;
    builder.send(around(problem, problem.rank, -static_cast<int32_t>(have)), scratch(0, more));
    builder.recv(around(problem, problem.rank, static_cast<int32_t>(have)), scratch(have * count, more));
    builder.end_round();
  }
  const uint64_t from_own = (world_size - rank) * count;
  builder.copy(output(rank * count, from_own), scratch(0, from_own));
  builder.copy(output(0, rank * count), scratch(from_own, rank * count));
  return std::move(builder).finish();
}

Schedule ring_all_gather(const Problem& problem) {
  const Blocks blocks = problem.kind == BP_ALL_GATHERV ? Blocks::varying(problem.out_counts, problem.out_displs)
                                                       : Blocks::equal(problem.count);
  Builder builder;
  builder.copy(blocks.in(Where::kOutput, problem.rank), input(0, blocks.count(problem.rank)));
  builder.end_round();
  ring_all_gather(builder, problem, blocks);
  return std::move(builder).finish();
}

}  // namespace backplane::core
