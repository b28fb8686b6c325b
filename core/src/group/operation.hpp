// SPDX-License-Identifier: Apache-2.0
//
// One operation on its way to an agent, and the check against the table of abi/op.h before any plugin sees it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backplane/abi/op.h"

namespace backplane::core {

class Agent;

struct Operation {
  bp_op op;
  uint64_t count = 0;         // N of the table; for v-variants this rank's own part (for messages and the recorder)
  uint64_t per_rank = 0;      // schedules: Problem::count
  int32_t root_or_peer = -1;  // -1 if the kind has none
  // Displacements that the caller left out; `op` points to them.
  std::vector<uint64_t> in_displs = {};
  std::vector<uint64_t> out_displs = {};
  Agent* agent = nullptr;
  bool native = false;  // performed by the backend itself, not by a schedule
  uint64_t entry = 0;   // in the recorder

  Operation() {}  // leaves `op` as it is: clearing it costs a small operation as much as checking it
  // Moving keeps the displacements where they are.
  Operation(Operation&&) noexcept = default;
  Operation& operator=(Operation&&) noexcept = default;
};

// Copies `op` into operation->op, checked and normalised: in-place broadcasts have input and output, unused buffers are
// empty, count arrays that do not matter on this rank are NULL. Throws core::Error (BP_INVALID).
void validate(const bp_op& op, int32_t rank, int32_t world_size, Operation* operation);

// Is the kind a reduction?
inline bool reduces(uint32_t kind) { return (BP_REDUCTIONS & BP_BIT(kind)) != 0; }

// Do all ranks take part?
inline bool collective(uint32_t kind) { return kind != BP_SEND && kind != BP_RECV; }

// "all_reduce (f32 x 1024)", "send (u8 x 4) to rank 2": for error messages.
std::string describe(const Operation& operation);

}  // namespace backplane::core
