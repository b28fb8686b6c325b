// SPDX-License-Identifier: Apache-2.0
//
// What the files of the program mpi_ranks share.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"

namespace backplane::mpi_ranks {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kMany = 6'000;  // sanitizers record each access to an element
inline constexpr uint64_t kLong = 100'000;
#else
inline constexpr uint64_t kMany = 60'000;
inline constexpr uint64_t kLong = 500'000;
#endif

inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}

// The text of the failure, which has this status.
template <typename Call>
std::string failure_of(Status status, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    expect(error.status() == status, "another status than that of: " + std::string(error.what()));
    return error.what();
  }
  throw std::runtime_error("expected: a failure");
}

// What a rank contributes.
template <typename T>
std::vector<T> values(int rank, uint64_t count) {
  std::vector<T> result(count);
  for (uint64_t i = 0; i < count; ++i) result[i] = static_cast<T>(static_cast<int>(i % 50) + 3 * rank);
  return result;
}

// All collectives over MPI, of several dtypes and sizes. Throws if a result is wrong.
void collectives(ProcessGroup& group);
// All_reduces of sizes around the limits of the plugin's own, in place and not, one after another and at once.
void small_all_reduces(ProcessGroup& group);
// Messages of lengths around the limit of short ones, and of the length of an announcement. Shorter buffers.
void message_lengths(ProcessGroup& group);
void probed_messages(ProcessGroup& group);

}  // namespace backplane::mpi_ranks
