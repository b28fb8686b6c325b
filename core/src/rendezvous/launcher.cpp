// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/launcher.hpp"

#include <array>
#include <limits>
#include <string>

#include "environment.hpp"

namespace backplane::core {
namespace {

struct Names {
  const char* rank;
  const char* world_size;
};

// In order of preference: what the user or torchrun sets, Open MPI, MPICH's Hydra (also Intel MPI), Slurm.
constexpr std::array<Names, 4> kLaunchers{{{"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}}};

std::optional<int32_t> first_of(const char* Names::*member, int64_t least) {
  for (const auto& names : kLaunchers) {
    if (const auto text = variable(names.*member)) {
      return static_cast<int32_t>(parse_number(names.*member, *text, least, std::numeric_limits<int32_t>::max()));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<int32_t> environment_rank() { return first_of(&Names::rank, 0); }

std::optional<int32_t> environment_world_size() { return first_of(&Names::world_size, 1); }

}  // namespace backplane::core
