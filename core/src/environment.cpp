// SPDX-License-Identifier: Apache-2.0
#include "environment.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "error.hpp"
#include "text.hpp"

namespace backplane::core {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool variable_is_true(const char* name) {
  std::string value = variable(name).value_or("");
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

int64_t parse_number(const std::string& what, const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < least || value > most) {
    fail(BP_INVALID, "{} is {}; give a whole number from {} to {}", what, quoted(text), least, most);
  }
  return value;
}

uint16_t parse_port(const std::string& what, const std::string& text) {
  return static_cast<uint16_t>(parse_number(what, text, 1, 65535));
}

}  // namespace backplane::core
