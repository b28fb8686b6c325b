// SPDX-License-Identifier: Apache-2.0
//
// Keys about the rounds of a job. A job may be initialised, destroyed and initialised again in one store (a file, or
// one that a launcher serves). Each rank counts how often it has left; that number is its round, and prefixes all its
// keys.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace backplane::core {

// In the root store: how often this rank has left.
inline std::string left_key(int32_t rank) { return fmt::format("bp/left/{}", rank); }
inline std::string round_prefix(int64_t round) { return fmt::format("bp/round/{}/", round); }
// In a round: how many ranks have left it, and that all have.
inline constexpr const char* kDepartedKey = "bp/departed";
inline constexpr const char* kAllDepartedKey = "bp/all_departed";

}  // namespace backplane::core
