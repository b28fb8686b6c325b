// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <set>

namespace backplane::core::rpc {

// A set of so many; the oldest are forgotten.
template <typename T, size_t kMost>
class Recent {
 public:
  void add(const T& each) {
    if (!set_.insert(each).second) return;
    order_.push_back(each);
    if (order_.size() <= kMost) return;
    set_.erase(order_.front());
    order_.pop_front();
  }
  bool contains(const T& each) const { return set_.contains(each); }
  bool remove(const T& each) { return set_.erase(each) > 0; }

 private:
  std::set<T> set_;
  std::deque<T> order_;
};

}  // namespace backplane::core::rpc
