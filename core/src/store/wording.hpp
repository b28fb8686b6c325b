// SPDX-License-Identifier: Apache-2.0
//
// Checks of arguments and the sentences that all stores use, so that each of them reads the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/store.hpp"

namespace backplane::core {

// BP_INVALID if an argument exceeds the limits of store.hpp.
void check_key(std::string_view key);
void check_keys(const std::vector<std::string>& keys);
void check_value(std::string_view key, std::string_view value);
void check_values(std::string_view key, std::string_view expected, std::string_view desired);

// 'key' with unprintable bytes escaped, cut if long.
std::string quoted(std::string_view key);
// "'a', 'b' and 17 more".
std::string listed(const std::vector<std::string>& keys);
// "5 s", "20 ms".
std::string duration_text(int64_t ns);

// How long a call may take, taken down at its start for the message at its end.
class Allowance {
 public:
  explicit Allowance(const Deadline& deadline) : ns_(deadline.left_ns()) {}
  // "5 s"
  std::string text() const { return duration_text(ns_); }

 private:
  int64_t ns_;
};

// BP_TIMEOUT "waited 5 s for 'a' and 'b', which nobody set (tcp://127.0.0.1:29500)". `missing` is what `listed` made.
[[noreturn]] void fail_missing(const std::string& missing, const Allowance& allowance, const std::string& where);

}  // namespace backplane::core
