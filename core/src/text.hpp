// SPDX-License-Identifier: Apache-2.0
//
// Values as text in messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deadline.hpp"

namespace backplane::core {

// 'text' in quotes: unprintable bytes as \xNN, cut after 100 bytes.
std::string quoted(std::string_view text);
// "'a', 'b' and 17 more".
std::string listed(const std::vector<std::string>& texts);
// ASCII letters in the other case; the locale does not matter.
std::string lower(std::string_view text);
std::string upper(std::string_view text);
// The parts between the separators, also empty ones.
std::vector<std::string> split(std::string_view text, char separator);
// "5 s", "20 ms".
std::string duration_text(int64_t ns);

// The time that a call may take, recorded at its start for the message of a timeout.
class Allowance {
 public:
  explicit Allowance(const Deadline& deadline) : ns_(deadline.left_ns()) {}
  // "5 s"
  std::string text() const { return duration_text(ns_); }

 private:
  int64_t ns_;
};

}  // namespace backplane::core
