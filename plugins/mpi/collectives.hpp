// SPDX-License-Identifier: Apache-2.0
//
// MPI's nonblocking collectives on copies of the buffers.
#pragma once

#include <memory>

#include "operation.hpp"

namespace backplane::mpi {

// Starts a collective. All ranks do so in the same order.
std::unique_ptr<Operation> start_collective(GroupState& group, const bp_op& op);

}  // namespace backplane::mpi
