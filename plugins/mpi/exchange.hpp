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

}  // namespace backplane::mpi
