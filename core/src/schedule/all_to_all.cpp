// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

// Bruck et al. 1997, section 3, radix 2. A block's *way* is how many ranks up it has to go; blocks are kept in scratch
// by their way, and round k moves all those whose way has bit k by 2^k ranks. Everything goes through scratch, so the
// output may be the input.
Schedule bruck_all_to_all(const Problem& problem) {
  const uint64_t count = problem.count;
  const int32_t rank = problem.rank;
  const int32_t world_size = problem.world_size;
  const auto half = static_cast<uint64_t>(world_size / 2);  // no round moves more blocks
  const auto block = [count](uint64_t index) { return scratch(index * count, count); };
  const auto kept = [&block](int32_t way) { return block(static_cast<uint64_t>(way)); };
  const Blocks whole = Blocks::equal(count);
  const auto packed = static_cast<uint64_t>(world_size);  // block numbers where the messages begin
  const uint64_t arrived = packed + half;
  Builder builder;
  for (int32_t way = 0; way < world_size; ++way)
    builder.copy(kept(way), whole.in(Where::kInput, around(problem, rank, way)));
  for (int64_t bit = 1; bit < world_size; bit *= 2) {
    uint64_t moved = 0;
    for (int32_t way = 0; way < world_size; ++way)
      if ((way & bit) != 0) builder.copy(block(packed + moved++), kept(way));
    builder.end_round();
    const auto distance = static_cast<int32_t>(bit);
    builder.send(around(problem, rank, distance), scratch(packed * count, moved * count));
    builder.recv(around(problem, rank, -distance), scratch(arrived * count, moved * count));
    moved = 0;
    for (int32_t way = 0; way < world_size; ++way)
      if ((way & bit) != 0) builder.copy(kept(way), block(arrived + moved++));
  }
  for (int32_t way = 0; way < world_size; ++way)
    builder.copy(whole.in(Where::kOutput, around(problem, rank, -way)), kept(way));
  return std::move(builder).finish();
}

// Pairwise exchange (Thakur, Rabenseifner, Gropp 2005, section 4.4), with both partners at a distance in one round:
// what arrives then belongs exactly where the block lay that has just left, so the output may be the input, and two
// blocks of scratch are enough.
Schedule pairwise_all_to_all(const Problem& problem) {
  const int32_t rank = problem.rank;
  const Blocks blocks = Blocks::equal(problem.count);
  const Region arrived[] = {scratch(0, problem.count), scratch(problem.count, problem.count)};
  Builder builder;
  builder.copy(blocks.in(Where::kOutput, rank), blocks.in(Where::kInput, rank));
  builder.end_round();
  for (int32_t distance = 1; 2 * int64_t{distance} <= problem.world_size; ++distance) {
    const int32_t peers[] = {around(problem, rank, distance), around(problem, rank, -distance)};
    const int partners = peers[0] == peers[1] ? 1 : 2;
    for (int i = 0; i < partners; ++i) builder.send(peers[i], blocks.in(Where::kInput, peers[i]));
    for (int i = 0; i < partners; ++i) builder.recv(peers[i], arrived[i]);
    for (int i = 0; i < partners; ++i) builder.copy(blocks.in(Where::kOutput, peers[i]), arrived[i]);
    builder.end_round();
  }
  return std::move(builder).finish();
}

// Never in place (backplane/abi/op.h), so that everything is received where it belongs.
Schedule pairwise_all_to_allv(const Problem& problem) {
  const int32_t rank = problem.rank;
  const Blocks in = Blocks::varying(problem.in_counts, problem.in_displs);
  const Blocks out = Blocks::varying(problem.out_counts, problem.out_displs);
  Builder builder;
  builder.copy(out.in(Where::kOutput, rank), in.in(Where::kInput, rank));
  builder.end_round();
  for (int32_t distance = 1; distance < problem.world_size; ++distance) {
    const int32_t to = around(problem, rank, distance);
    const int32_t from = around(problem, rank, -distance);
    builder.send(to, in.in(Where::kInput, to));
    builder.recv(from, out.in(Where::kOutput, from));
    builder.end_round();
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
