// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

// Hillis, Steele, "Data parallel algorithms" (1986): after the round of distance d a rank has the sum of its input and
// the inputs of the 2d - 1 ranks below it.
Schedule doubling_scan(const CollectiveSpec& spec) {
  const uint64_t count = spec.count;
  Builder builder;
  builder.copy(output(0, count), input(0, count));
  builder.end_round();
  for (int64_t distance = 1; distance < spec.world_size; distance *= 2) {
    const int64_t above = spec.rank + distance;
    const int64_t below = spec.rank - distance;
    if (above < spec.world_size) builder.send(static_cast<int32_t>(above), output(0, count));
    if (below >= 0) {
      builder.recv(static_cast<int32_t>(below), scratch(0, count));
      const bool completes = spec.rank == spec.world_size - 1 && 2 * distance > spec.rank;
      builder.reduce(output(0, count), scratch(0, count), Order::kSourceFirst, completes);
    }
    builder.end_round();
  }
  return std::move(builder).finish();
}

// The same. Scratch contains the sum with this rank's input, the output the sum without it.
Schedule doubling_exscan(const CollectiveSpec& spec) {
  const uint64_t count = spec.count;
  const Region sum = scratch(0, count);
  const Region received = scratch(count, count);
  Builder builder;
  builder.copy(sum, input(0, count));
  builder.end_round();
  for (int64_t distance = 1; distance < spec.world_size; distance *= 2) {
    const int64_t above = spec.rank + distance;
    const int64_t below = spec.rank - distance;
    if (above < spec.world_size) builder.send(static_cast<int32_t>(above), sum);
    if (below >= 0) {
      builder.recv(static_cast<int32_t>(below), received);
      if (distance == 1) {
        builder.copy(output(0, count), received);
      } else {
        builder.reduce(output(0, count), received, Order::kSourceFirst);
      }
      if (spec.rank + 2 * distance < spec.world_size) builder.reduce(sum, received, Order::kSourceFirst);
    }
    builder.end_round();
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
