// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/collectives.hpp"

namespace backplane::core {

// Bruck et al. 1997, section 3, radix 2. The *offset* of a block is (target - source) mod W. Scratch keeps the blocks
// in the order of their offsets, and round k moves the blocks whose offset has bit k by 2^k ranks. All data goes
// through scratch, so that the output may be the input.
Schedule bruck_all_to_all(const CollectiveSpec& spec) {
  const uint64_t count = spec.count;
  const int32_t rank = spec.rank;
  const int32_t world_size = spec.world_size;
  const auto half = static_cast<uint64_t>(world_size / 2);  // the most blocks that a round moves
  const auto block = [count](uint64_t index) { return scratch(index * count, count); };
  const auto kept = [&block](int32_t offset) { return block(static_cast<uint64_t>(offset)); };
  const Blocks whole = Blocks::equal(count);
  const auto packed = static_cast<uint64_t>(world_size);  // block numbers of the messages in scratch
  const uint64_t arrived = packed + half;
  Builder builder;
  for (int32_t offset = 0; offset < world_size; ++offset)
    builder.copy(kept(offset), whole.in(BufferRole::kInput, neighbor(spec, rank, offset)));
  for (int64_t bit = 1; bit < world_size; bit *= 2) {
    uint64_t moved = 0;
    for (int32_t offset = 0; offset < world_size; ++offset)
      if ((offset & bit) != 0) builder.copy(block(packed + moved++), kept(offset));
    builder.end_round();
    const auto distance = static_cast<int32_t>(bit);
    builder.send(neighbor(spec, rank, distance), scratch(packed * count, moved * count));
    builder.recv(neighbor(spec, rank, -distance), scratch(arrived * count, moved * count));
    moved = 0;
    for (int32_t offset = 0; offset < world_size; ++offset)
      if ((offset & bit) != 0) builder.copy(kept(offset), block(arrived + moved++));
  }
  for (int32_t offset = 0; offset < world_size; ++offset)
    builder.copy(whole.in(BufferRole::kOutput, neighbor(spec, rank, -offset)), kept(offset));
  return std::move(builder).finish();
}

// Pairwise exchange (Thakur, Rabenseifner, Gropp 2005, section 4.4), with both partners at a distance in one round: the
// blocks that arrive replace those that were sent, so that the output may be the input, with two blocks of scratch. If
// it is not, blocks arrive in the output.
Schedule pairwise_all_to_all(const CollectiveSpec& spec) {
  const int32_t rank = spec.rank;
  const Blocks blocks = Blocks::equal(spec.count);
  Builder builder;
  builder.copy(blocks.in(BufferRole::kOutput, rank), blocks.in(BufferRole::kInput, rank));
  builder.end_round();
  for (int32_t distance = 1; 2 * int64_t{distance} <= spec.world_size; ++distance) {
    const int32_t peers[] = {neighbor(spec, rank, distance), neighbor(spec, rank, -distance)};
    const Region to[] = {blocks.in(BufferRole::kOutput, peers[0]), blocks.in(BufferRole::kOutput, peers[1])};
    const Region arrived[] = {spec.may_overlap ? scratch(0, spec.count) : to[0],
                              spec.may_overlap ? scratch(spec.count, spec.count) : to[1]};
    const int partners = peers[0] == peers[1] ? 1 : 2;
    for (int i = 0; i < partners; ++i) builder.send(peers[i], blocks.in(BufferRole::kInput, peers[i]));
    for (int i = 0; i < partners; ++i) builder.recv(peers[i], arrived[i]);
    for (int i = 0; i < partners && spec.may_overlap; ++i) builder.copy(to[i], arrived[i]);
    builder.end_round();
  }
  return std::move(builder).finish();
}

// Never in place (backplane/abi/op.h), so that all blocks are received into the output.
Schedule pairwise_all_to_allv(const CollectiveSpec& spec) {
  const int32_t rank = spec.rank;
  const Blocks in = Blocks::varying(spec.in_counts, spec.in_displs);
  const Blocks out = Blocks::varying(spec.out_counts, spec.out_displs);
  Builder builder;
  builder.copy(out.in(BufferRole::kOutput, rank), in.in(BufferRole::kInput, rank));
  builder.end_round();
  for (int32_t distance = 1; distance < spec.world_size; ++distance) {
    const int32_t to = neighbor(spec, rank, distance);
    const int32_t from = neighbor(spec, rank, -distance);
    builder.send(to, in.in(BufferRole::kInput, to));
    builder.recv(from, out.in(BufferRole::kOutput, from));
    builder.end_round();
  }
  return std::move(builder).finish();
}

}  // namespace backplane::core
