// SPDX-License-Identifier: Apache-2.0
//
// Group `options`: the schema.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "groups.hpp"
#include "load_open.hpp"

namespace backplane::conformance::options {
namespace {

std::string name_of(const bp_option& option) {
  return load::printable(option.key) ? "option '" + std::string(option.key) + "'" : "an option without a key";
}

bool numeric(uint32_t type) {
  return type == BP_OPTION_INT || type == BP_OPTION_FLOAT || type == BP_OPTION_DURATION || type == BP_OPTION_BYTES;
}

bool bounded(const bp_option& option) { return option.min != 0 || option.max != 0; }

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == '|') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Each key has the form [a-z][a-z0-9_]*, and each option has a help text.
void unknown_names_nearest_key(Rank& rank) {
  for (uint32_t i = 0; i < rank.backend().option_count; ++i) {
    const bp_option& option = *rank.backend().options[i];
    rank.step(fmt::format("reading option {}", i));
    const std::string key = load::printable(option.key) ? option.key : "";
    const bool good = !key.empty() && key.size() <= 64 && key.front() >= 'a' && key.front() <= 'z' &&
                      key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
    rank.check(good, fmt::format("a key of option {} of the form [a-z][a-z0-9_]*, 64 bytes at most", i),
               "'" + key + "'");
    rank.check(load::printable(option.help) && *option.help != '\0',
               "a help text in one line of printable UTF-8 for " + name_of(option), "none");
  }
}

void duplicate(Rank& rank) {
  std::set<std::string> keys;
  for (uint32_t i = 0; i < rank.backend().option_count; ++i) {
    const std::string key = rank.backend().options[i]->key;
    rank.check(keys.insert(key).second, "keys that differ", fmt::format("option {} is '{}' again", i, key));
  }
}

void check_type(Rank& rank, const bp_option& option) {
  constexpr uint32_t kFlags = BP_OPTION_REQUIRED | BP_OPTION_SECRET | BP_OPTION_SAME_ON_ALL;
  const bool later = rank.plugin().built_minor > BP_ABI_MINOR;
  rank.check(later || option.type <= BP_OPTION_BYTES, "a type of options.h in " + name_of(option),
             std::to_string(option.type));
  rank.check(later || (option.flags & ~kFlags) == 0, "flags of options.h in " + name_of(option),
             fmt::format("mask {}", option.flags));
}

void check_choices(Rank& rank, const bp_option& option) {
  if (option.type != BP_OPTION_ENUM) {
    rank.check(option.choices == nullptr, "choices only for an enumeration, and not for " + name_of(option), "some");
    return;
  }
  if (!rank.check(load::printable(option.choices), "printable choices of " + name_of(option), "none")) return;
  std::set<std::string> seen;
  for (const std::string& choice : split(option.choices)) {
    rank.check(!choice.empty() && seen.insert(choice).second, "choices of " + name_of(option) + " that differ",
               std::string("'") + option.choices + "'");
  }
}

void check_bounds(Rank& rank, const bp_option& option) {
  rank.check(std::isfinite(option.min) && std::isfinite(option.max) && option.min <= option.max,
             "finite bounds of " + name_of(option) + ", the lower one first",
             fmt::format("{:g} and {:g}", option.min, option.max));
  rank.check(numeric(option.type) || !bounded(option), "bounds only for numbers, and not for " + name_of(option),
             fmt::format("{:g} and {:g}", option.min, option.max));
}

// A number of a type whose text is in normal form; NaN if it is none.
double number_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() || *end != '\0' ? std::nan("") : value;
}

void check_default(Rank& rank, const bp_option& option) {
  if (option.default_value == nullptr || *option.default_value == '\0') return;
  const std::string what = "the default of " + name_of(option);
  rank.check((option.flags & BP_OPTION_REQUIRED) == 0, "no default for a required one, " + name_of(option), "one");
  if (!rank.check(load::valid_utf8(option.default_value), what + " is UTF-8", "it is not")) return;
  const std::string text = option.default_value;
  if (option.type == BP_OPTION_BOOL) {
    const std::set<std::string> words = {"true", "false", "1", "0", "yes", "no", "on", "off"};
    rank.check(words.count(text) == 1, what + " is true or false", "'" + text + "'");
  } else if (option.type == BP_OPTION_ENUM && option.choices != nullptr) {
    const std::vector<std::string> choices = split(option.choices);
    rank.check(std::find(choices.begin(), choices.end(), text) != choices.end(), what + " is one of its choices",
               "'" + text + "'");
  } else if (numeric(option.type)) {
    const double value = number_of(normal_form(option.type, text));
    rank.check(!std::isnan(value), what + " is of its type", "'" + text + "'");
    rank.check(option.type != BP_OPTION_INT || std::trunc(value) == value, what + " is whole", "'" + text + "'");
    rank.check(!bounded(option) || (value >= option.min && value <= option.max),
               fmt::format("{} is between {:g} and {:g}", what, option.min, option.max), "'" + text + "'");
  }
}

void bad_value_names_range(Rank& rank) {
  for (uint32_t i = 0; i < rank.backend().option_count; ++i) {
    const bp_option& option = *rank.backend().options[i];
    rank.step("reading " + name_of(option));
    check_type(rank, option);
    check_choices(rank, option);
    check_bounds(rank, option);
    check_default(rank, option);
  }
}

}  // namespace

std::vector<Case> schema_cases() {
  const Needs any = {.groups = false, .ops = 0};
  const Execution one = {.worlds = {1}, .deadline = 10 * kSecond};
  return {
      Case("unknown-names-nearest-key", "keys are well-formed and documented, so that errors can name the nearest",
           unknown_names_nearest_key, any, one),
      Case("bad-value-names-range", "types, bounds, choices and defaults are consistent, so that errors can name them",
           bad_value_names_range, any, one),
      Case("duplicate", "no key occurs twice", duplicate, any, one),
  };
}

}  // namespace backplane::conformance::options
