// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <map>

namespace backplane::core::rpc {

// The kCapacity elements that were added last. An addition to a full set evicts the oldest.
template <typename T, size_t kCapacity>
class RecentSet {
 public:
  RecentSet() = default;
  RecentSet(const RecentSet&) = delete;
  RecentSet& operator=(const RecentSet&) = delete;

  void add(const T& element) {
    if (contains(element)) return;
    order_.push_back(element);
    positions_.emplace(element, std::prev(order_.end()));
    if (order_.size() <= kCapacity) return;
    positions_.erase(order_.front());
    order_.pop_front();
  }
  bool contains(const T& element) const { return positions_.contains(element); }
  // False if it is not there.
  bool remove(const T& element) {
    const auto found = positions_.find(element);
    if (found == positions_.end()) return false;
    order_.erase(found->second);
    positions_.erase(found);
    return true;
  }

 private:
  using Order = std::list<T>;
  Order order_;
  std::map<T, typename Order::iterator> positions_;
};

}  // namespace backplane::core::rpc
