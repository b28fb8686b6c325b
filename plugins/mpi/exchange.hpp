// SPDX-License-Identifier: Apache-2.0
//
// Small all_reduces by messages of the plugin: MPI_Iallreduce takes twice as long, and a call with a deadline cannot
// block in MPI_Allreduce.
#pragma once

#include <memory>

#include "operation.hpp"

namespace backplane::mpi {

// Whether the operation is one of these, which depends only on what is equal on all ranks.
bool exchanges(const GroupState& group, const bp_op& op);
// Starts one. NULL: it was synchronous, and is complete.
std::unique_ptr<sdk::Work> exchange(GroupState& group, const bp_op& op);

// The same between two ranks, for a buffer of more than kExchangedPart bytes, which goes in parts of that size. UCX and
// the shared memory of MPICH pass on a message of this size at once; for a longer one, sender and receiver first agree.
constexpr uint64_t kExchangedPart = 8 << 10;  // a multiple of each element's size
std::unique_ptr<sdk::Work> exchange_in_parts(GroupState& group, const bp_op& op);

// The failure if the buffer of `peer` has `theirs` bytes, and this rank's another number.
sdk::Failure sizes_differ(int peer, uint64_t theirs, uint64_t own);
struct Reduction {
  uint32_t dtype;
  uint32_t op;
};
// Combines elements in the order of the ranks. `to` may be one of the inputs. Throws if the core cannot.
void combine_exchanged(const GroupState& group, const Reduction& reduction, int peer, const std::byte* own,
                       const std::byte* theirs, std::byte* to, uint64_t count);

}  // namespace backplane::mpi
