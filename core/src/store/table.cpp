// SPDX-License-Identifier: Apache-2.0
#include "store/table.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "error.hpp"
#include "text.hpp"

namespace backplane::core {

Bytes make_bytes(std::string text) { return std::make_shared<const std::string>(std::move(text)); }

Bytes Table::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

bool Table::contains_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return contains(key); });
}

std::vector<std::string> Table::missing(const std::vector<std::string>& keys) const {
  std::vector<std::string> absent;
  std::copy_if(keys.begin(), keys.end(), std::back_inserter(absent),
               [this](const std::string& key) { return !contains(key); });
  return absent;
}

int64_t Table::sum(std::string_view key, int64_t delta) const {
  int64_t value = 0;
  if (const Bytes held = find(key)) {
    const char* end = held->data() + held->size();
    const auto parsed = std::from_chars(held->data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      fail(BP_INVALID, "cannot add to key {}: its value {} is not a decimal number", quoted(key), quoted(*held));
    }
  }
  int64_t total = 0;
  if (__builtin_add_overflow(value, delta, &total)) {
    fail(BP_INVALID, "cannot add {} to key {}: its value {} would overflow 64 bits", delta, quoted(key), value);
  }
  return total;
}

bool Table::matches(std::string_view key, std::string_view expected) const {
  const Bytes held = find(key);
  return held == nullptr ? expected.empty() : *held == expected;
}

void Table::set(std::string_view key, Bytes value) {
  const auto found = values_.find(key);
  if (found != values_.end()) {
    found->second = std::move(value);
  } else {
    values_.emplace(key, std::move(value));
  }
}

bool Table::remove(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  values_.erase(found);
  return true;
}

void Table::remove_prefix(std::string_view prefix) {
  const auto first = values_.lower_bound(prefix);
  auto end = first;
  while (end != values_.end() && end->first.starts_with(prefix)) ++end;
  values_.erase(first, end);
}

void Table::for_each(const std::function<void(const std::string& key, const std::string& value)>& call) const {
  for (const auto& [key, value] : values_) call(key, *value);
}

}  // namespace backplane::core
