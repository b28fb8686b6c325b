// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <map>

namespace backplane::core::rpc {

// A set of so many; the oldest are forgotten. What is removed makes room.
template <typename T, size_t kMost>
class Recent {
 public:
  Recent() = default;
  Recent(const Recent&) = delete;
  Recent& operator=(const Recent&) = delete;

  void add(const T& each) {
    if (contains(each)) return;
    order_.push_back(each);
    places_.emplace(each, std::prev(order_.end()));
    if (order_.size() <= kMost) return;
    places_.erase(order_.front());
    order_.pop_front();
  }
  bool contains(const T& each) const { return places_.contains(each); }
  bool remove(const T& each) {
    const auto found = places_.find(each);
    if (found == places_.end()) return false;
    order_.erase(found->second);
    places_.erase(found);
    return true;
  }

 private:
  using Order = std::list<T>;
  Order order_;
  std::map<T, typename Order::iterator> places_;
};

}  // namespace backplane::core::rpc
