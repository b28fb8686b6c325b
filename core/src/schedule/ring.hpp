// SPDX-License-Identifier: Apache-2.0
//
// The two ring phases that several collectives are made of (Patarasuk, Yuan 2009, section 4). Every rank sends to
// rank + 1 and receives from rank - 1, world_size - 1 times.
#pragma once

#include "schedule/blocks.hpp"
#include "schedule/builder.hpp"
#include "schedule/schedule.hpp"

namespace backplane::core {

// Leaves in `result`, on rank r, block r of all inputs combined. Block b travels from rank b + 1 up to rank b, and each
// rank on the way adds its own part: one chain per block. Scratch from ring_scratch() on is free for the caller.
// `result` may be input's own block, which is read last and never sent.
void ring_reduce_scatter(Builder& builder, const Problem& problem, const Blocks& blocks, Region result);
uint64_t ring_scratch(const Problem& problem, const Blocks& blocks);
// The round of one hop of it, of 0 ... world_size - 2; `scratch_at` is where ring_scratch() elements of scratch begin.
void ring_reduce_scatter_hop(Builder& builder, const Problem& problem, const Blocks& blocks, Region result,
                             uint64_t scratch_at, int32_t hop);

// Every rank has its own block in place in the output; afterwards every rank has all of them.
void ring_all_gather(Builder& builder, const Problem& problem, const Blocks& blocks);
void ring_all_gather_hop(Builder& builder, const Problem& problem, const Blocks& blocks, int32_t hop);

}  // namespace backplane::core
