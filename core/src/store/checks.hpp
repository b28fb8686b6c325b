// SPDX-License-Identifier: Apache-2.0
//
// Argument checks and the timeout error that all stores share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/store.hpp"
#include "text.hpp"

namespace backplane::core {

// BP_INVALID if an argument exceeds the limits of store.hpp.
void check_key(std::string_view key);
void check_keys(const std::vector<std::string>& keys);
void check_value(std::string_view key, std::string_view value);
void check_values(std::string_view key, std::string_view expected, std::string_view desired);

// BP_TIMEOUT "waited 5 s for 'a' and 'b', which was not set (tcp://127.0.0.1:29500)". `missing`: from `listed`.
[[noreturn]] void fail_missing(const std::string& missing, const Allowance& allowance, const std::string& where);

}  // namespace backplane::core
