// SPDX-License-Identifier: Apache-2.0
#include "store/wording.hpp"

#include <cctype>
#include <cmath>

namespace backplane::core {

void check_key(std::string_view key) {
  if (key.empty()) fail(BP_INVALID, "a key of a store must not be empty");
  if (key.size() > kMaxKeySize) {
    fail(BP_INVALID, "the key {} has {} bytes; a store takes at most {}", quoted(key), key.size(), kMaxKeySize);
  }
}

void check_keys(const std::vector<std::string>& keys) {
  if (keys.size() > kMaxKeys) fail(BP_INVALID, "{} keys in one call; a store takes at most {}", keys.size(), kMaxKeys);
  size_t total = 0;
  for (const auto& key : keys) {
    check_key(key);
    total += key.size();
  }
  if (total > kMaxValueSize) {
    fail(BP_INVALID, "the {} keys of one call have {} bytes; a store takes at most {}", keys.size(), total,
         kMaxValueSize);
  }
}

void check_value(std::string_view key, std::string_view value) {
  check_key(key);
  if (value.size() > kMaxValueSize) {
    fail(BP_INVALID, "the value for key {} has {} bytes; a store takes at most {}", quoted(key), value.size(),
         kMaxValueSize);
  }
}

void check_values(std::string_view key, std::string_view expected, std::string_view desired) {
  check_value(key, expected);
  check_value(key, desired);
  if (expected.size() + desired.size() > kMaxValueSize) {
    fail(BP_INVALID, "the two values for key {} have {} bytes; a store takes at most {}", quoted(key),
         expected.size() + desired.size(), kMaxValueSize);
  }
}

std::string quoted(std::string_view key) {
  constexpr size_t kShown = 100;
  std::string text = "'";
  for (const char c : key.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      text += c;
    } else {
      text += fmt::format("\\x{:02x}", byte);
    }
  }
  return text + (key.size() > kShown ? "...'" : "'");
}

std::string listed(const std::vector<std::string>& keys) {
  constexpr size_t kShown = 4;
  std::string text;
  const size_t shown = keys.size() <= kShown + 1 ? keys.size() : kShown;  // "and 1 more" is no shorter than the key
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == keys.size() ? " and " : ", ";
    text += quoted(keys[i]);
  }
  if (shown < keys.size()) text += fmt::format(" and {} more", keys.size() - shown);
  return text;
}

std::string duration_text(int64_t ns) {
  const double value = seconds(ns);
  // Rounded, since what is left of "5 s" at the start of a call is 4.99999 s.
  if (value >= 0.995) return fmt::format("{:g} s", std::round(value * 100) / 100);
  return fmt::format("{:g} ms", std::round(value * 1000));
}

void fail_missing(const std::string& missing, const Allowance& allowance, const std::string& where) {
  fail(BP_TIMEOUT, "waited {} for {}, which nobody set ({})", allowance.text(), missing, where);
}

}  // namespace backplane::core
