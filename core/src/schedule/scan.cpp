// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

// Hillis, Steele, "Data parallel algorithms" (1986): after the round of distance d a rank has the sum of its own input
// and of those of the 2d - 1 ranks below it.
Schedule doubling_scan(const Problem& problem) {
  const uint64_t count = problem.count;
  Builder builder;
  builder.copy(output(0, count), input(0, count));
  builder.end_round();
  for (int64_t distance = 1; distance < problem.world_size; distance *= 2) {
    const int64_t above = problem.rank + distance;
    const int64_t below = problem.rank - distance;
    if (above < problem.world_size) builder.send(static_cast<int32_t>(above), output(0, count));
    if (below >= 0) {
      builder.recv(static_cast<int32_t>(below), scratch(0, count));
      const bool is_whole = problem.rank == problem.world_size - 1 && 2 * distance > problem.rank;
      builder.reduce(output(0, count), scratch(0, count), Order::kSourceFirst, is_whole);
    }
    builder.end_round();
  }
  return std::move(builder).finish();
}

// The same, with the sum that includes this rank's input in scratch and the one that does not in the output.
Schedule doubling_exscan(const Problem& problem) {
  const uint64_t count = problem.count;
  const Region sum = scratch(0, count);
  const Region received = scratch(count, count);
  Builder builder;
  builder.copy(sum, input(0, count));
  builder.end_round();
  for (int64_t distance = 1; distance < problem.world_size; distance *= 2) {
    const int64_t above = problem.rank + distance;
    const int64_t below = problem.rank - distance;
    if (above < problem.world_size) builder.send(static_cast<int32_t>(above), sum);
    if (below >= 0) {
      builder.recv(static_cast<int32_t>(below), received);
      if (distance == 1) {
        builder.copy(output(0, count), received);
      } else {
        builder.reduce(output(0, count), received, Order::kSourceFirst);
      }
      if (problem.rank + 2 * distance < problem.world_size) builder.reduce(sum, received, Order::kSourceFirst);
    }
    builder.end_round();
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
