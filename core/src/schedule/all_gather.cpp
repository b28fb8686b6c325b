// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"
#include "schedule/ring.hpp"

namespace backplane::core {

// Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
// message-passing systems" (1997), section 4. Scratch contains the blocks of this rank and of the ranks after it; every
// round doubles their number.
Schedule bruck_all_gather(const CollectiveSpec& spec) {
  const uint64_t count = spec.count;
  const auto world_size = static_cast<uint64_t>(spec.world_size);
  const auto rank = static_cast<uint64_t>(spec.rank);
  Builder builder;
  builder.copy(scratch(0, count), input(0, count));
  builder.end_round();
  for (uint64_t have = 1; have < world_size; have *= 2) {
    const uint64_t more = std::min(have, world_size - have) * count;
    builder.send(neighbor(spec, spec.rank, -static_cast<int32_t>(have)), scratch(0, more));
    builder.recv(neighbor(spec, spec.rank, static_cast<int32_t>(have)), scratch(have * count, more));
    builder.end_round();
  }
  const uint64_t from_own = (world_size - rank) * count;
  builder.copy(output(rank * count, from_own), scratch(0, from_own));
  builder.copy(output(0, rank * count), scratch(from_own, rank * count));
  return std::move(builder).finish();
}

Schedule ring_all_gather(const CollectiveSpec& spec) {
  const Blocks blocks =
      spec.kind == BP_ALL_GATHERV ? Blocks::varying(spec.out_counts, spec.out_displs) : Blocks::equal(spec.count);
  Builder builder;
  builder.copy(blocks.in(BufferRole::kOutput, spec.rank), input(0, blocks.count(spec.rank)));
  builder.end_round();
  ring_all_gather(builder, spec, blocks);
  return std::move(builder).finish();
}

}  // namespace backplane::core
