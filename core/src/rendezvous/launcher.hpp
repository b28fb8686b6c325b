// SPDX-License-Identifier: Apache-2.0
//
// Rank and world size that launchers export.
#pragma once

#include <cstdint>
#include <optional>

namespace backplane::core {

// From RANK, else from what Open MPI, MPICH or Slurm export.
std::optional<int32_t> environment_rank();
std::optional<int32_t> environment_world_size();

}  // namespace backplane::core
