// SPDX-License-Identifier: Apache-2.0
#include "store/checks.hpp"
#include "text.hpp"

#include "error.hpp"

namespace backplane::core {

void check_key(std::string_view key) {
  if (key.empty()) fail(BP_INVALID, "a key of a store must not be empty");
  if (key.size() > kMaxKeySize) {
    fail(BP_INVALID, "the key {} has {} bytes; a store accepts at most {}", quoted(key), key.size(), kMaxKeySize);
  }
}

void check_keys(const std::vector<std::string>& keys) {
  if (keys.size() > kMaxKeys)
    fail(BP_INVALID, "{} keys in one call; a store accepts at most {}", keys.size(), kMaxKeys);
  size_t total = 0;
  for (const auto& key : keys) {
    check_key(key);
    total += key.size();
  }
  if (total > kMaxValueSize) {
    fail(BP_INVALID, "the {} keys of one call have {} bytes; a store accepts at most {}", keys.size(), total,
         kMaxValueSize);
  }
}

void check_value(std::string_view key, std::string_view value) {
  check_key(key);
  if (value.size() > kMaxValueSize) {
    fail(BP_INVALID, "the value for key {} has {} bytes; a store accepts at most {}", quoted(key), value.size(),
         kMaxValueSize);
  }
}

void check_values(std::string_view key, std::string_view expected, std::string_view desired) {
  check_value(key, expected);
  check_value(key, desired);
  if (expected.size() + desired.size() > kMaxValueSize) {
    fail(BP_INVALID, "the two values for key {} have {} bytes; a store accepts at most {}", quoted(key),
         expected.size() + desired.size(), kMaxValueSize);
  }
}

void fail_missing(const std::string& missing, const Allowance& allowance, const std::string& where) {
  fail(BP_TIMEOUT, "waited {} for {}, which no rank set (at {})", allowance.text(), missing, where);
}

}  // namespace backplane::core
