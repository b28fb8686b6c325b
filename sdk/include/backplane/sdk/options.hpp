// SPDX-License-Identifier: Apache-2.0
//
// Declaring options (a constexpr std::array<bp_option, N>) and reading their values. The core has checked them against
// the schema: every declared key is present and well-formed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "failure.hpp"

namespace backplane::sdk {

// One option as an author writes it. Omitted fields have the defaults of abi/options.h.
struct OptionSpec {
  uint32_t type = BP_OPTION_STRING;
  const char* key = nullptr;
  const char* default_value = nullptr;
  const char* help = "";
  double min = 0;  // bounds apply if one of them is not 0
  double max = 0;
  const char* choices = nullptr;
  uint32_t flags = 0;
};

// sdk::option({.type = BP_OPTION_INT, .key = "threads", .default_value = "2", .help = "...", .min = 1, .max = 64})
constexpr bp_option option(const OptionSpec& spec) {
  return {sizeof(bp_option),  spec.type, spec.flags,   0,        spec.key,
          spec.default_value, spec.help, spec.choices, spec.min, spec.max};
}

// Joins two schemas.
template <size_t N, size_t M>
constexpr std::array<bp_option, N + M> joined(const std::array<bp_option, N>& first,
                                              const std::array<bp_option, M>& second) {
  std::array<bp_option, N + M> all{};
  for (size_t i = 0; i < N; ++i) all[i] = first[i];
  for (size_t i = 0; i < M; ++i) all[N + i] = second[i];
  return all;
}

// The values, by key. Reading an undeclared key is a bug in the backend and throws.
class Options {
 public:
  Options(const bp_key_value* values, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) values_.emplace_back(values[i].key, values[i].value);
  }

  const std::string& text(std::string_view key) const {
    for (const auto& [name, value] : values_) {
      if (name == key) return value;
    }
    throw Failure(BP_INTERNAL, "this backend declares no option '" + std::string(key) + "'");
  }
  // Integers, durations (nanoseconds) and bytes.
  int64_t integer(std::string_view key) const { return std::strtoll(text(key).c_str(), nullptr, 10); }
  double real(std::string_view key) const { return std::strtod(text(key).c_str(), nullptr); }
  bool boolean(std::string_view key) const { return text(key) == "true"; }

 private:
  std::vector<std::pair<std::string, std::string>> values_;
};

}  // namespace backplane::sdk
