// SPDX-License-Identifier: Apache-2.0
#include "matcher.hpp"

#include <algorithm>

namespace backplane::zmq_plugin {
namespace {

// Removes the first element of the tag's list that satisfies `wanted` and returns it.
template <typename Element, typename Wanted>
std::optional<Element> take_first(std::unordered_map<uint64_t, std::list<Element>>& files, uint64_t tag,
                                  const Wanted& wanted) {
  const auto file = files.find(tag);
  if (file == files.end()) return std::nullopt;
  const auto found = std::find_if(file->second.begin(), file->second.end(), wanted);
  if (found == file->second.end()) return std::nullopt;
  std::optional<Element> element(std::move(*found));
  file->second.erase(found);
  if (file->second.empty()) files.erase(file);
  return element;
}

}  // namespace

OperationPtr Matcher::take_receive(int32_t source, uint64_t tag) {
  return take_first(receives_, tag,
                    [source](const OperationPtr& receive) {
                      return receive->peer == BP_ANY_SOURCE || receive->peer == source;
                    })
      .value_or(nullptr);
}

std::optional<Arrival> Matcher::take_arrival(const Operation& receive) {
  return take_first(arrivals_, receive.tag, [&receive](const Arrival& arrival) {
    return receive.peer == BP_ANY_SOURCE || receive.peer == arrival.source;
  });
}

void Matcher::add_receive(const OperationPtr& receive) {
  std::list<OperationPtr>& file = receives_[receive->tag];
  auto place = file.end();
  while (place != file.begin() && (*std::prev(place))->id > receive->id) --place;
  file.insert(place, receive);
}

void Matcher::add_arrival(Arrival arrival) { arrivals_[arrival.tag].push_back(std::move(arrival)); }

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
