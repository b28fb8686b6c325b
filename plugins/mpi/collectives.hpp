// SPDX-License-Identifier: Apache-2.0
//
// MPI's nonblocking collectives, on copies of the buffers or, with the option `direct`, on the buffers.
#pragma once

#include <memory>

#include "operation.hpp"

namespace backplane::mpi {

// Starts a collective. All ranks do so in the same order. NULL: it was synchronous, and is complete.
std::unique_ptr<sdk::Work> collective(GroupState& group, const bp_op& op);

}  // namespace backplane::mpi
