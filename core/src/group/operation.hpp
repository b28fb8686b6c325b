// SPDX-License-Identifier: Apache-2.0
//
// An operation and its check against the table of abi/op.h, before it is submitted to an agent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backplane/abi/op.h"

namespace backplane::core {

class Agent;

struct Operation {
  bp_op op;
  uint64_t count = 0;         // N of the table; for v-variants this rank's part (for errors and the recorder)
  uint64_t per_rank = 0;      // CollectiveSpec::count
  int32_t root_or_peer = -1;  // -1 if the kind has none
  // Displacements that the caller left out; `op` points to them.
  std::vector<uint64_t> in_displs = {};
  std::vector<uint64_t> out_displs = {};
  Agent* agent = nullptr;
  bool native = false;  // performed by the backend, not by a schedule
  uint64_t entry = 0;   // number in the recorder

  Operation() {}  // does not initialise `op`, which would cost a small operation as much as its check
  // Moving keeps the addresses of the displacements.
  Operation(Operation&&) noexcept = default;
  Operation& operator=(Operation&&) noexcept = default;
};

// Checks `op` and copies it, normalised, into operation->op: in-place broadcasts have input and output, unused buffers
// are empty, count arrays that this rank does not use are NULL. Throws BP_INVALID.
void validate(const bp_op& op, int32_t rank, int32_t world_size, Operation* operation);

// The kinds with counts per rank.
inline constexpr uint64_t kVariants = BP_BIT(BP_GATHERV) | BP_BIT(BP_SCATTERV) | BP_BIT(BP_ALL_GATHERV) |
                                      BP_BIT(BP_REDUCE_SCATTERV) | BP_BIT(BP_ALL_TO_ALLV);

// Whether the kind is a reduction.
inline bool reduces(uint32_t kind) { return (BP_REDUCTIONS & BP_BIT(kind)) != 0; }

// Whether all ranks take part.
inline bool collective(uint32_t kind) { return kind != BP_SEND && kind != BP_RECV; }

// "all_reduce (f32 x 1024)", "send (u8 x 4) to rank 2": for error messages.
std::string describe(const Operation& operation);

}  // namespace backplane::core
