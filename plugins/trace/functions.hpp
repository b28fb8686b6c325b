// SPDX-License-Identifier: Apache-2.0
//
// Call statistics per function.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "backplane/base/utf8.hpp"
#include "statistics.hpp"

namespace backplane::trace {

struct Function {
  std::string name;  // UTF-8, unique
  Counts made;       // measured by callers
  Counts served;     // measured by callees
};

// Thread-safe. References stay valid for the life of this object.
class Functions {
 public:
  // Returns the number of a function name. Peers choose the names, so names are truncated to kLongestName bytes, and
  // all functions after the first kMost are counted together as "(others)".
  uint32_t number(std::string_view called) {
    called = called.substr(0, kLongestName);
    const std::lock_guard lock(mutex_);
    const auto known = numbers_.find(called);
    if (known != numbers_.end()) return known->second;
    if (numbers_.size() >= kMost) return number_of("(others)");
    const uint32_t number = number_of(called.empty() ? "(fetch)" : base::replace_invalid_utf8(called));
    numbers_.emplace(called, number);
    return number;
  }
  Function& at(uint32_t number) {
    const std::lock_guard lock(mutex_);
    return functions_[number];
  }
  template <typename Visit>
  void for_each(const Visit& visit) const {
    const std::lock_guard lock(mutex_);
    for (const Function& function : functions_) visit(function);
  }

 private:
  static constexpr size_t kLongestName = 200;
  static constexpr size_t kMost = 1000;

  // Names that differ only in invalid UTF-8 share a number. Requires mutex_.
  uint32_t number_of(const std::string& name) {
    const auto [at, is_new] = by_name_.emplace(name, static_cast<uint32_t>(functions_.size()));
    if (is_new) functions_.emplace_back().name = name;
    return at->second;
  }

  mutable std::mutex mutex_;
  std::deque<Function> functions_;
  std::map<std::string, uint32_t, std::less<>> numbers_;  // by the name as sent, truncated
  std::map<std::string, uint32_t> by_name_;
};

}  // namespace backplane::trace
