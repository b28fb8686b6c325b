// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

// Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (1988): after round k a rank has received,
// directly or indirectly, from the 2^(k+1) - 1 ranks before it.
Schedule dissemination_barrier(const CollectiveSpec& spec) {
  Builder builder;
  for (int64_t distance = 1; distance < spec.world_size; distance *= 2) {
    const auto step = static_cast<int32_t>(distance);
    builder.signal(neighbor(spec, spec.rank, step), neighbor(spec, spec.rank, -step));
    builder.end_round();
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
