// SPDX-License-Identifier: Apache-2.0
//
// The keys of a job's rounds. A job may be initialised, destroyed and initialised again in one store (a file, or one
// that a launcher serves). The round of a rank is the number of times that it has left; it prefixes all its keys.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace backplane::core {

// In the root store: how many times this rank has left.
inline std::string left_key(int32_t rank) { return fmt::format("bp/left/{}", rank); }
inline std::string round_prefix(int64_t round) { return fmt::format("bp/round/{}/", round); }
// In a round: the number of ranks that have left it, and the mark that all have.
inline constexpr const char* kDepartedKey = "bp/departed";
inline constexpr const char* kAllDepartedKey = "bp/all_departed";
// In a round: why it failed to start.
inline constexpr const char* kFailureKey = "bp/failure";

}  // namespace backplane::core
