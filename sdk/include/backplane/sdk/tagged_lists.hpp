// SPDX-License-Identifier: Apache-2.0
//
// Lists of elements by tag: many elements with one tag do not slow down the search for another tag.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "probe.hpp"

namespace backplane::sdk {

// An Element has the fields `tag` and `order`. Each list is sorted by `order`.
template <typename Element>
class TaggedLists {
  using List = std::list<Element>;
  using ListsByTag = std::unordered_map<uint64_t, List>;

 public:
  struct Position {
    typename ListsByTag::iterator entry;
    typename List::iterator element;
    Element& operator*() const { return *element; }
    Element* operator->() const { return &*element; }
  };

  void insert(Element element) {
    List& list = lists_[element.tag];
    auto at = list.end();
    while (at != list.begin() && std::prev(at)->order > element.order) --at;
    list.insert(at, std::move(element));
  }

  // The first element with exactly this tag that satisfies `wanted`.
  template <typename Wanted>
  std::optional<Position> first(uint64_t tag, const Wanted& wanted) {
    return first(lists_.find(tag), wanted);
  }
  // The first one, by `order`, of all tags that BP_ANY_TAG matches.
  template <typename Wanted>
  std::optional<Position> first_of_any_tag(const Wanted& wanted) {
    std::optional<Position> oldest;
    for (auto entry = lists_.begin(); entry != lists_.end(); ++entry) {
      if (!matches_tag(BP_ANY_TAG, entry->first)) continue;
      const auto found = first(entry, wanted);
      if (found && (!oldest || (*found)->order < (*oldest)->order)) oldest = found;
    }
    return oldest;
  }

  void erase(const Position& position) {
    position.entry->second.erase(position.element);
    if (position.entry->second.empty()) lists_.erase(position.entry);
  }
  // Moves the element to the end of `other`.
  void move_to(List& other, const Position& position) {
    other.splice(other.end(), position.entry->second, position.element);
    if (position.entry->second.empty()) lists_.erase(position.entry);
  }
  // Returns how many were removed.
  template <typename Unwanted>
  size_t remove_if(const Unwanted& unwanted) {
    size_t removed = 0;
    for (auto& [tag, list] : lists_) removed += list.remove_if(unwanted);
    if (removed > 0) std::erase_if(lists_, [](const auto& entry) { return entry.second.empty(); });
    return removed;
  }
  template <typename Body>
  void for_each(const Body& body) {
    for (auto& [tag, list] : lists_) std::for_each(list.begin(), list.end(), body);
  }
  void clear() { lists_.clear(); }

 private:
  template <typename Wanted>
  std::optional<Position> first(typename ListsByTag::iterator entry, const Wanted& wanted) {
    if (entry == lists_.end()) return std::nullopt;
    const auto found = std::find_if(entry->second.begin(), entry->second.end(), wanted);
    if (found == entry->second.end()) return std::nullopt;
    return Position{entry, found};
  }

  ListsByTag lists_;
};

}  // namespace backplane::sdk
