// SPDX-License-Identifier: Apache-2.0
#include "plugin/option_schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "options/names.hpp"
#include "options/option_value.hpp"

namespace backplane::core::plugin {
namespace {

bool valid_key(std::string_view key) {
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !key.empty() && key.size() <= 64 && letter(key.front()) &&
         std::all_of(key.begin(), key.end(),
                     [&letter](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '_'; });
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
  // The same parser reads the values that users give.
  const std::string problem = read_option(option, option.default_value).problem;
  if (problem.empty()) return {};
  const bool secret = (option.flags & BP_OPTION_SECRET) != 0;
  return fmt::format("has the default {}, which {}", secret ? "(secret)" : fmt::format("'{}'", option.default_value),
                     problem);
}

}  // namespace

std::string option_schema_problem(const bp_backend& backend) {
  constexpr uint32_t kMaxOptions = 1024;
  if (backend.option_count > kMaxOptions)
    return fmt::format("it has {} options; at most {} are allowed", backend.option_count, kMaxOptions);
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
