// SPDX-License-Identifier: Apache-2.0
//
// The functions that workers call, by number, and what is counted of each.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "statistics.hpp"
#include "utf8.hpp"

namespace backplane::trace {

struct Function {
  std::string name;  // UTF-8; unlike those of the others
  Counts made;       // calls as the callers see them
  Counts served;     // and as those see them who run the function
};

// Any thread. What is handed out stays where it is.
class Functions {
 public:
  // Peers may call what they like: names are cut, and of the functions beyond kMost only what they come to together is
  // known.
  uint32_t number(std::string_view called) {
    called = called.substr(0, kLongestName);
    const std::lock_guard lock(mutex_);
    const auto known = numbers_.find(called);
    if (known != numbers_.end()) return known->second;
    if (numbers_.size() >= kMost) return number_of("(others)");
    const uint32_t number = number_of(called.empty() ? "(fetch)" : valid(called));
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

  // Names that differ only in what is no UTF-8 share a number. With mutex_ held.
  uint32_t number_of(const std::string& name) {
    const auto [at, is_new] = by_name_.emplace(name, static_cast<uint32_t>(functions_.size()));
    if (is_new) functions_.emplace_back().name = name;
    return at->second;
  }

  mutable std::mutex mutex_;
  std::deque<Function> functions_;
  std::map<std::string, uint32_t, std::less<>> numbers_;  // as they were called
  std::map<std::string, uint32_t> by_name_;
};

}  // namespace backplane::trace
