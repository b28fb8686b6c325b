// SPDX-License-Identifier: Apache-2.0
#include "environment.hpp"

#include <sys/auxv.h>

#include <charconv>
#include <cstdlib>

#include "error.hpp"
#include "log.hpp"
#include "text.hpp"

namespace backplane::core {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool runs_secure() { return ::getauxval(AT_SECURE) != 0; }

std::optional<std::string> trusted_variable(const char* name, bool secure) {
  return secure ? std::nullopt : variable(name);
}

void warn_of_value(const char* name, const std::string& value, const char* allowed, const char* used) {
  warn_once(fmt::format("{} is {}; it must be {}. Using {}", name, quoted(value), allowed, used));
}

bool variable_is_true(const char* name) {
  const std::string value = lower(variable(name).value_or("0"));
  if (value == "1" || value == "true" || value == "yes" || value == "on") return true;
  if (value != "0" && value != "false" && value != "no" && value != "off") {
    warn_of_value(name, value, "1, true, yes, on, 0, false, no or off", "0");
  }
  return false;
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
