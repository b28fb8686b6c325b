// SPDX-License-Identifier: Apache-2.0
#include "plugin/option_schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "plugin/names.hpp"

namespace backplane::core::plugin {
namespace {

using Unit = std::pair<std::string_view, double>;
constexpr Unit kNoUnits[] = {{"", 1}};
constexpr Unit kDurations[] = {{"", 1e9}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 6e10}, {"h", 3.6e12}};
constexpr Unit kBytes[] = {{"", 1}, {"K", 1024.0}, {"M", 1048576.0}, {"G", 1073741824.0}};

bool valid_key(std::string_view key) {
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !key.empty() && key.size() <= 64 && letter(key.front()) &&
         std::all_of(key.begin(), key.end(),
                     [&letter](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '_'; });
}

template <size_t N>
std::optional<double> number(std::string_view text, const Unit (&units)[N]) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  const std::string_view suffix(rest, static_cast<size_t>(text.data() + text.size() - rest));
  for (const auto& [unit, factor] : units) {
    if (suffix == unit) return value * factor;
  }
  return std::nullopt;
}

std::optional<double> integer(std::string_view text) {
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return static_cast<double>(value);
}

bool listed(std::string_view text, std::string_view choices) {
  for (size_t begin = 0; begin <= choices.size();) {
    const size_t end = std::min(choices.find('|', begin), choices.size());
    if (choices.substr(begin, end - begin) == text) return true;
    begin = end + 1;
  }
  return false;
}

std::optional<double> numeric_value(uint32_t type, std::string_view text) {
  switch (type) {
    case BP_OPTION_INT:
      return integer(text);
    case BP_OPTION_DURATION:
      return number(text, kDurations);
    case BP_OPTION_BYTES:
      return number(text, kBytes);
    default:
      return number(text, kNoUnits);
  }
}

// What is wrong with a default, as the end of a sentence; empty if nothing.
std::string default_problem(const bp_option& option, std::string_view text) {
  switch (option.type) {
    case BP_OPTION_STRING:
      return printable(text) ? "" : "is not printable UTF-8";
    case BP_OPTION_ENUM:
      return listed(text, option.choices) ? "" : fmt::format("is not one of {}", option.choices);
    case BP_OPTION_BOOL:
      return listed(text, "true|false|1|0|yes|no|on|off") ? "" : "is not true or false";
    default:
      break;
  }
  const auto value = numeric_value(option.type, text);
  if (!value) return "does not parse as its type";
  const bool bounded = option.min != 0 || option.max != 0;
  if (bounded && (*value < option.min || *value > option.max)) {
    return fmt::format("is not between {} and {}", option.min, option.max);
  }
  return {};
}

std::string option_problem(const bp_option& option) {
  if (option.help == nullptr || !printable(option.help)) return "has no printable help text";
  if (option.type > BP_OPTION_BYTES) return fmt::format("has the unknown type {}", option.type);
  if (option.type == BP_OPTION_ENUM && (option.choices == nullptr || *option.choices == '\0')) {
    return "is an enumeration without choices";
  }
  if (option.choices != nullptr && !printable(option.choices)) return "has choices that are not printable UTF-8";
  if (!(option.min <= option.max)) return fmt::format("has the bounds {} and {}", option.min, option.max);
  if (option.default_value == nullptr || *option.default_value == '\0') return {};
  if ((option.flags & BP_OPTION_REQUIRED) != 0) return "is required and has a default";
  const std::string problem = default_problem(option, option.default_value);
  if (problem.empty()) return {};
  const bool secret = (option.flags & BP_OPTION_SECRET) != 0;
  return fmt::format("has the default {}, which {}", secret ? "(secret)" : fmt::format("'{}'", option.default_value),
                     problem);
}

}  // namespace

std::string option_schema_problem(const bp_backend& backend) {
  constexpr uint32_t kMaxOptions = 1024;
  if (backend.option_count > kMaxOptions)
    return fmt::format("it has {} options, which is absurd", backend.option_count);
  if (backend.option_count > 0 && backend.options == nullptr) return "its table of options is NULL";
  std::set<std::string_view> keys;
  for (uint32_t i = 0; i < backend.option_count; ++i) {
    const bp_option* option = backend.options[i];
    if (option == nullptr) return fmt::format("option {} is NULL", i);
    if (!BP_HAS(option, max)) return fmt::format("option {} has a struct_size of {}", i, option->struct_size);
    if (option->key == nullptr || !valid_key(option->key)) {
      return fmt::format("option {} has no valid key: a-z, then a-z, 0-9 and _", i);
    }
    if (!keys.insert(option->key).second) return fmt::format("option '{}' is there twice", option->key);
    const std::string problem = option_problem(*option);
    if (!problem.empty()) return fmt::format("option '{}' {}", option->key, problem);
  }
  return {};
}

}  // namespace backplane::core::plugin
