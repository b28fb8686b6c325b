// SPDX-License-Identifier: Apache-2.0
//
// Rank and world size that launchers export.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace backplane::core {

enum class LauncherKind {
  kGeneral,  // RANK and WORLD_SIZE
  kOpenMpi,
  kPmi,  // MPICH's Hydra, Intel MPI, srun --mpi=pmi2
  kSlurm,
};

struct EnvironmentRank {
  std::optional<int32_t> rank;
  std::optional<int32_t> world_size;
  LauncherKind launcher = LauncherKind::kGeneral;  // whose variables these are
};

// From the variables of one launcher: RANK and WORLD_SIZE, else those of Open MPI, MPICH or Slurm; the first that has
// both, else the first that has one. BP_INVALID if RANK or WORLD_SIZE is set alone and contradicts the launcher's.
// Logs a warning if both are set and contradict it.
EnvironmentRank environment_rank();

// A job id from the variables of the launcher or the batch system, the same on all ranks: two jobs that meet on one
// port by mistake then have different ids. It begins with kDerivedJobId (store.hpp). Empty if there are no such
// variables.
std::string derived_job_id(LauncherKind launcher);

}  // namespace backplane::core
