// SPDX-License-Identifier: Apache-2.0
#include "matcher.hpp"

#include <algorithm>

#include "backplane/sdk/probe.hpp"

namespace backplane::zmq_plugin {
namespace {

template <typename Element>
using Files = std::unordered_map<uint64_t, std::list<Element>>;

template <typename Element>
struct Found {
  typename Files<Element>::iterator file;
  typename std::list<Element>::iterator element;
};

// The first element of a tag's list that satisfies `wanted`.
template <typename Element, typename Wanted>
std::optional<Found<Element>> find_first(Files<Element>& files, typename Files<Element>::iterator file,
                                         const Wanted& wanted) {
  if (file == files.end()) return std::nullopt;
  const auto found = std::find_if(file->second.begin(), file->second.end(), wanted);
  if (found == file->second.end()) return std::nullopt;
  return Found<Element>{file, found};
}

// Removes it and returns it.
template <typename Element>
std::optional<Element> take(Files<Element>& files, const std::optional<Found<Element>>& found) {
  if (!found) return std::nullopt;
  std::optional<Element> element(std::move(*found->element));
  found->file->second.erase(found->element);
  if (found->file->second.empty()) files.erase(found->file);
  return element;
}

template <typename Element, typename Wanted>
std::optional<Element> take_first(Files<Element>& files, uint64_t tag, const Wanted& wanted) {
  return take(files, find_first(files, files.find(tag), wanted));
}

}  // namespace

OperationPtr Matcher::take_receive(int32_t source, uint64_t tag) {
  const auto wanted = [source](const OperationPtr& receive) {
    return receive->peer == BP_ANY_SOURCE || receive->peer == source;
  };
  std::optional<Found<OperationPtr>> found = find_first(receives_, receives_.find(tag), wanted);
  if (const auto any_tag = receives_.find(BP_ANY_TAG);
      any_tag != receives_.end() && sdk::matches_tag(BP_ANY_TAG, tag)) {
    const auto other = find_first(receives_, any_tag, wanted);
    if (other && (!found || (*other->element)->id < (*found->element)->id)) found = other;
  }
  return take(receives_, found).value_or(nullptr);
}

std::optional<Arrival> Matcher::take_arrival(int32_t source, uint64_t tag) {
  const auto wanted = [source](const Arrival& arrival) { return source == BP_ANY_SOURCE || source == arrival.source; };
  if (tag != BP_ANY_TAG) return take_first(arrivals_, tag, wanted);
  std::optional<Found<Arrival>> oldest;
  for (auto file = arrivals_.begin(); file != arrivals_.end(); ++file) {
    if (!sdk::matches_tag(BP_ANY_TAG, file->first)) continue;
    const auto found = find_first(arrivals_, file, wanted);
    if (found && (!oldest || found->element->order < oldest->element->order)) oldest = found;
  }
  return take(arrivals_, oldest);
}

void Matcher::add_receive(const OperationPtr& receive) {
  std::list<OperationPtr>& file = receives_[receive->tag];
  auto place = file.end();
  while (place != file.begin() && (*std::prev(place))->id > receive->id) --place;
  file.insert(place, receive);
}

void Matcher::add_arrival(Arrival arrival) {
  arrival.order = ++next_order_;
  arrivals_[arrival.tag].push_back(std::move(arrival));
}

bool Matcher::remove_receive(const Operation& receive) {
  return take_first(receives_, receive.tag, [&receive](const OperationPtr& other) { return other.get() == &receive; })
      .has_value();
}

bool Matcher::remove_request(int32_t source, uint64_t tag, uint64_t remote_id) {
  return take_first(arrivals_, tag,
                    [source, remote_id](const Arrival& arrival) {
                      return !arrival.eager && arrival.source == source && arrival.remote_id == remote_id;
                    })
      .has_value();
}

bool Matcher::remove_local(const Operation& send) {
  return take_first(arrivals_, send.tag, [&send](const Arrival& arrival) { return arrival.local_send.get() == &send; })
      .has_value();
}

std::vector<OperationPtr> Matcher::drop_source(int32_t source) {
  std::vector<OperationPtr> dropped;
  for (auto& [tag, file] : receives_) {
    for (const OperationPtr& receive : file) {
      if (receive->peer == source) dropped.push_back(receive);
    }
    file.remove_if([source](const OperationPtr& receive) { return receive->peer == source; });
  }
  for (auto& [tag, file] : arrivals_) {
    file.remove_if([source](const Arrival& arrival) { return !arrival.eager && arrival.source == source; });
  }
  std::erase_if(receives_, [](const auto& entry) { return entry.second.empty(); });
  std::erase_if(arrivals_, [](const auto& entry) { return entry.second.empty(); });
  return dropped;
}

std::vector<OperationPtr> Matcher::clear() {
  std::vector<OperationPtr> dropped;
  for (const auto& [tag, file] : receives_) dropped.insert(dropped.end(), file.begin(), file.end());
  for (const auto& [tag, file] : arrivals_) {
    for (const Arrival& arrival : file) {
      if (arrival.local_send) dropped.push_back(arrival.local_send);
    }
  }
  receives_.clear();
  arrivals_.clear();
  return dropped;
}

}  // namespace backplane::zmq_plugin
