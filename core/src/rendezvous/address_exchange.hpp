// SPDX-License-Identifier: Apache-2.0
//
// Exchange of rank 0's address through the launcher's own key-value space.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "deadline.hpp"

namespace backplane::core {

// Rank 0's text if it cannot serve the store, before the reason. Another exchange may follow.
inline constexpr std::string_view kNoStore = "none ";

// The key of rank 0's text. A key can be put once.
inline std::string exchange_key(int failed_exchanges) {
  return failed_exchanges == 0 ? "backplane-address" : fmt::format("backplane-address-{}", failed_exchanges);
}

// The connection to the launcher after an exchange. kEnd: the process cannot use it any more. kKeep: an MPI library may
// begin on it; if the process has loaded none by its end, it ends the connection then.
enum class Afterwards { kEnd, kKeep };

// Collective over all ranks of the launcher's job: returns the text of rank 0, at most 400 bytes, on all. Once per
// process, and before that any number of times with a text that begins with kNoStore. Throws core::Error with the
// reason and the remedy.

// PMI-1 over the descriptor PMI_FD, as MPICH's Hydra, Intel MPI and srun --mpi=pmi2 offer it. The process must not be a
// program over MPI.
std::string exchange_by_pmi(int32_t rank, const std::string& text, Afterwards afterwards, const Deadline& deadline);

// PMIx, through the library libpmix.so.2, as Open MPI offers it. A call that does not return by the deadline keeps its
// thread.
std::string exchange_by_pmix(int32_t rank, const std::string& text, const Deadline& deadline);

}  // namespace backplane::core
