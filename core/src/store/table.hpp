// SPDX-License-Identifier: Apache-2.0
//
// The keys and values of a store in memory, for the in-process store, the TCP server and file stores. Not synchronised.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::core {

// Shared: replies to many ranks do not copy the value.
using Bytes = std::shared_ptr<const std::string>;
Bytes make_bytes(std::string text);

class Table {
 public:
  // Null if the key is missing.
  Bytes find(std::string_view key) const;
  bool contains(std::string_view key) const { return values_.find(key) != values_.end(); }
  bool contains_all(const std::vector<std::string>& keys) const;
  std::vector<std::string> missing(const std::vector<std::string>& keys) const;
  // The value of the counter `key` plus `delta`. BP_INVALID if its value is not a decimal number or the sum overflows.
  int64_t sum(std::string_view key, int64_t delta) const;
  // Whether compare_set with this `expected` would set the key.
  bool matches(std::string_view key, std::string_view expected) const;
  int64_t size() const { return static_cast<int64_t>(values_.size()); }

  void set(std::string_view key, Bytes value);
  bool remove(std::string_view key);
  void remove_prefix(std::string_view prefix);
  void clear() { values_.clear(); }
  void for_each(const std::function<void(const std::string& key, const std::string& value)>& call) const;

 private:
  std::map<std::string, Bytes, std::less<>> values_;
};

}  // namespace backplane::core
