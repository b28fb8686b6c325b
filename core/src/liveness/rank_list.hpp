// SPDX-License-Identifier: Apache-2.0
//
// A list of ranks under one key of a store ("3 0 1 "). Several clients may append at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "liveness/key_value_space.hpp"

namespace backplane::core {

// Appends a rank once.
void append_rank(KeyValueSpace& store, const std::string& key, int32_t rank, const Deadline& deadline);
// Empty if the key is missing.
std::vector<int32_t> read_ranks(KeyValueSpace& store, const std::string& key, const Deadline& deadline);

}  // namespace backplane::core
