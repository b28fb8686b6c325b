// SPDX-License-Identifier: Apache-2.0
#include "options/option_value.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "error.hpp"
#include "options/names.hpp"
#include "options/nearest.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

using Unit = std::pair<std::string_view, double>;
constexpr Unit kDurations[] = {{"", 1e9}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 6e10}, {"h", 3.6e12}};
constexpr Unit kBytes[] = {{"", 1}, {"K", 1024.0}, {"M", 1048576.0}, {"G", 1073741824.0}};
constexpr double kLargest = 9.2e18;  // fits into int64_t

std::optional<double> parse_real(std::string_view text, std::string_view& rest) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  rest = std::string_view(end, static_cast<size_t>(text.data() + text.size() - end));
  return value;
}

std::string range_problem(const bp_option& option, double value) {
  const bool bounded = option.min != 0 || option.max != 0;
  if (!bounded || (value >= option.min && value <= option.max)) return {};
  if (option.type == BP_OPTION_DURATION) {
    return fmt::format("is not between {} s and {} s", option.min / 1e9, option.max / 1e9);
  }
  return fmt::format("is not between {} and {}", option.min, option.max);
}

OptionValue read_integer(const bp_option& option, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {"", "is not a whole number"};
  return {std::to_string(value), range_problem(option, static_cast<double>(value))};
}

OptionValue read_real(const bp_option& option, std::string_view text) {
  std::string_view rest;
  const auto value = parse_real(text, rest);
  if (!value || !rest.empty()) return {"", "is not a number"};
  return {std::string(text), range_problem(option, *value)};
}

OptionValue read_quantity(const bp_option& option, std::string_view text, std::span<const Unit> units,
                          const char* problem) {
  std::string_view suffix;
  const auto value = parse_real(text, suffix);
  const auto unit = std::find_if(units.begin(), units.end(), [&suffix](const Unit& u) { return u.first == suffix; });
  if (!value || unit == units.end()) return {"", problem};
  const double quantity = std::round(*value * unit->second);
  if (std::abs(quantity) > kLargest) return {"", "is too large"};
  std::string range = range_problem(option, quantity);
  if (!range.empty() && option.type == BP_OPTION_DURATION && suffix.empty()) {
    range += fmt::format("; a number without a unit is seconds: write {0}ms or {0}us", text);
  }
  return {std::to_string(static_cast<int64_t>(quantity)), range};
}

OptionValue read_bool(std::string_view text) {
  for (const std::string_view yes : {"true", "1", "yes", "on"}) {
    if (text == yes) return {"true", ""};
  }
  for (const std::string_view no : {"false", "0", "no", "off"}) {
    if (text == no) return {"false", ""};
  }
  return {"", "is not true or false"};
}

OptionValue read_choice(const bp_option& option, std::string_view text) {
  const std::vector<std::string> choices = split(option.choices, '|');
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return {std::string(text), ""};
  return {"", fmt::format("is not one of {}", option.choices)};
}

std::vector<std::string> keys_of(const bp_backend& backend) {
  std::vector<std::string> keys;
  for (uint32_t i = 0; i < backend.option_count; ++i) keys.emplace_back(backend.options[i]->key);
  return keys;
}

// Some options of torch begin with an underscore (_transports).
KeyValues without_underscores(KeyValues given) {
  for (auto& [key, value] : given) {
    if (key.starts_with('_')) key.erase(0, 1);
  }
  return given;
}

void refuse_unknown(const bp_backend& backend, const KeyValues& given) {
  const std::vector<std::string> keys = keys_of(backend);
  for (auto entry = given.begin(); entry != given.end(); ++entry) {
    const auto& key = entry->first;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail(BP_INVALID, "{} has no option '{}'.{} It has: {}.", backend.id, escaped(key), did_you_mean(key, keys),
           keys.empty() ? "none" : fmt::format("{}", fmt::join(keys, ", ")));
    }
    const auto same = [&key](const auto& other) { return other.first == key; };
    if (std::find_if(given.begin(), entry, same) != entry)
      fail(BP_INVALID, "option '{}' of {} is given twice; keep one", key, backend.id);
  }
}

}  // namespace

OptionValue read_option(const bp_option& option, std::string_view text) {
  switch (option.type) {
    case BP_OPTION_STRING:
      return {std::string(text), printable(text) ? "" : "is not printable UTF-8"};
    case BP_OPTION_INT:
      return read_integer(option, text);
    case BP_OPTION_FLOAT:
      return read_real(option, text);
    case BP_OPTION_BOOL:
      return read_bool(text);
    case BP_OPTION_ENUM:
      return read_choice(option, text);
    case BP_OPTION_DURATION:
      return read_quantity(option, text, kDurations, "is not a duration such as 250ms, 5s or 2m");
    case BP_OPTION_BYTES:
      return read_quantity(option, text, kBytes, "is not a size such as 4096, 64K or 1M");
    default:
      return {"", "has an unknown type"};
  }
}

KeyValues complete_options(const bp_backend& backend, const KeyValues& given) {
  const KeyValues plain = without_underscores(given);
  refuse_unknown(backend, plain);
  KeyValues complete;
  for (uint32_t i = 0; i < backend.option_count; ++i) {
    const bp_option& option = *backend.options[i];
    const std::string key = option.key;
    const auto entry = std::find_if(plain.begin(), plain.end(), [&key](const auto& e) { return e.first == key; });
    if (entry == plain.end() && (option.flags & BP_OPTION_REQUIRED) != 0) {
      fail(BP_INVALID, "{} needs the option '{}': {}", backend.id, key, option.help);
    }
    const char* fallback = option.default_value == nullptr ? "" : option.default_value;
    const std::string text = entry == plain.end() ? fallback : entry->second;
    if (entry == plain.end() && text.empty()) {
      complete.emplace_back(key, "");  // the same for every type
      continue;
    }
    const OptionValue value = read_option(option, text);
    if (!value.problem.empty()) {
      const bool secret = (option.flags & BP_OPTION_SECRET) != 0;
      fail(BP_INVALID, "option '{}' of {}: {} {}", key, backend.id,
           secret ? "the value" : fmt::format("'{}'", escaped(text)), value.problem);
    }
    complete.emplace_back(key, value.text);
  }
  return complete;
}

}  // namespace backplane::core
