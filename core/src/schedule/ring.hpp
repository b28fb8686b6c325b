// SPDX-License-Identifier: Apache-2.0
//
// The two ring phases that several collectives are made of (Patarasuk, Yuan 2009, section 4). Every rank sends to
// rank + 1 and receives from rank - 1, world_size - 1 times.
#pragma once

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/schedule.hpp"

namespace backplane::core {

// Reduces block r of all inputs into `result` on rank r. Block b travels from rank b + 1 around the ring to rank b, and
// each rank adds its input. Uses the first ring_scratch() elements of scratch. `result` may be this rank's block of the
// input, which is read last and never sent.
void ring_reduce_scatter(Builder& builder, const CollectiveSpec& spec, const Blocks& blocks, Region result);
uint64_t ring_scratch(const CollectiveSpec& spec, const Blocks& blocks);
// One round of it. `hop`: 0 to world_size - 2. Uses ring_scratch() elements of scratch from `scratch_at` on.
void ring_reduce_scatter_hop(Builder& builder, const CollectiveSpec& spec, const Blocks& blocks, Region result,
                             uint64_t scratch_at, int32_t hop);

// Distributes the blocks: before it, each rank's output contains its own block; afterwards, all blocks.
void ring_all_gather(Builder& builder, const CollectiveSpec& spec, const Blocks& blocks);
void ring_all_gather_hop(Builder& builder, const CollectiveSpec& spec, const Blocks& blocks, int32_t hop);

}  // namespace backplane::core
