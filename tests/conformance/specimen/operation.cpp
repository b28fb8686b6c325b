// SPDX-License-Identifier: Apache-2.0
#include "operation.hpp"

#include <algorithm>

#include "mutants.hpp"

namespace backplane::specimen {
namespace {

bool accepts(const Operation& receive, int32_t source) {
  return receive.peer == BP_ANY_SOURCE || receive.peer == source;
}

// Moves what satisfies `wanted` out of all files, and forgets files that became empty.
template <typename Files, typename Wanted>
auto extract(Files& files, const Wanted& wanted) {
  typename Files::mapped_type taken;
  for (auto& [place, file] : files) {
    for (auto at = file.begin(); at != file.end();) {
      const auto here = at++;
      if (wanted(*here)) taken.splice(taken.end(), file, here);
    }
  }
  std::erase_if(files, [](const auto& entry) { return entry.second.empty(); });
  return taken;
}

// Removes the first element of one file that satisfies `wanted`.
template <typename Files, typename Wanted>
bool remove_one(Files& files, const typename Files::key_type& place, const Wanted& wanted) {
  const auto file = files.find(place);
  if (file == files.end()) return false;
  const auto found = std::find_if(file->second.begin(), file->second.end(), wanted);
  if (found == file->second.end()) return false;
  file->second.erase(found);
  if (file->second.empty()) files.erase(file);
  return true;
}

}  // namespace

bool all_done(const std::vector<TaskPtr>& tasks) {
  return std::all_of(tasks.begin(), tasks.end(), [](const TaskPtr& each) { return each->done; });
}

std::string Operation::text() const {
  std::string text = sends ? "send to " : "recv from ";
  text += peer == BP_ANY_SOURCE ? "any rank" : "rank " + std::to_string(peer);
  return text + " with tag " + std::to_string(tag);
}

OperationPtr Matcher::take_receive(const Arrival& arrival) {
  const auto oldest = [this, &arrival](uint64_t tag) -> OperationPtr {
    const auto file = receives_.find({arrival.channel, tag});
    if (file == receives_.end()) return nullptr;
    const auto found = std::find_if(file->second.begin(), file->second.end(), [&arrival](const OperationPtr& receive) {
      return accepts(*receive, arrival.source);
    });
    return found == file->second.end() ? nullptr : *found;
  };
  OperationPtr receive = oldest(arrival.tag);
  if ((arrival.tag & internal_) == 0) {
    const OperationPtr any = oldest(BP_ANY_TAG);
    if (any && (!receive || any->id < receive->id)) receive = any;
  }
  if (receive) remove_receive(*receive);
  return receive;
}

std::optional<Arrival> Matcher::take_any_tag(const Operation& receive) {
  auto oldest_file = arrivals_.end();
  std::list<Arrival>::iterator oldest;
  for (auto file = arrivals_.begin(); file != arrivals_.end(); ++file) {
    if (file->first.first != receive.channel || (file->first.second & internal_) != 0) continue;
    const auto found = std::find_if(file->second.begin(), file->second.end(),
                                    [&receive](const Arrival& arrival) { return accepts(receive, arrival.source); });
    if (found == file->second.end()) continue;
    if (oldest_file != arrivals_.end() && (found->order > oldest->order || mutant("p2p.any-tag:2"))) continue;
    oldest_file = file;
    oldest = found;
  }
  if (oldest_file == arrivals_.end()) return std::nullopt;
  Arrival arrival = std::move(*oldest);
  oldest_file->second.erase(oldest);
  if (oldest_file->second.empty()) arrivals_.erase(oldest_file);
  return arrival;
}

std::optional<Arrival> Matcher::take_arrival(const Operation& receive) {
  if (receive.tag == BP_ANY_TAG) return take_any_tag(receive);
  const auto file = arrivals_.find({receive.channel, receive.tag});
  if (file == arrivals_.end()) return std::nullopt;
  const auto found = std::find_if(file->second.begin(), file->second.end(),
                                  [&receive](const Arrival& arrival) { return accepts(receive, arrival.source); });
  if (found == file->second.end()) return std::nullopt;
  Arrival arrival = std::move(*found);
  file->second.erase(found);
  if (file->second.empty()) arrivals_.erase(file);
  return arrival;
}

void Matcher::add_receive(const OperationPtr& receive) {
  std::list<OperationPtr>& file = receives_[{receive->channel, receive->tag}];
  auto place = file.end();
  while (place != file.begin() && (*std::prev(place))->id > receive->id) --place;
  file.insert(place, receive);
}

void Matcher::add_arrival(Arrival arrival) {
  arrival.order = next_order_++;
  arrivals_[{arrival.channel, arrival.tag}].push_back(std::move(arrival));
}

bool Matcher::remove_receive(const Operation& receive) {
  return remove_one(receives_, {receive.channel, receive.tag},
                    [&receive](const OperationPtr& other) { return other.get() == &receive; });
}

bool Matcher::remove_local(const Operation& send) {
  return remove_one(arrivals_, {send.channel, send.tag},
                    [&send](const Arrival& arrival) { return arrival.local_send.get() == &send; });
}

bool Matcher::remove_request(const Arrival& request) {
  return remove_one(arrivals_, {request.channel, request.tag}, [&request](const Arrival& arrival) {
    return !arrival.eager && arrival.source == request.source && arrival.remote_id == request.remote_id;
  });
}

std::vector<OperationPtr> Matcher::drop_source(int32_t source) {
  extract(arrivals_, [source](const Arrival& arrival) { return !arrival.eager && arrival.source == source; });
  const auto taken = extract(receives_, [source](const OperationPtr& receive) { return receive->peer == source; });
  return {taken.begin(), taken.end()};
}

std::vector<OperationPtr> Matcher::take_any_source() {
  const auto taken = extract(receives_, [](const OperationPtr& receive) { return receive->peer == BP_ANY_SOURCE; });
  return {taken.begin(), taken.end()};
}

std::vector<OperationPtr> Matcher::clear() {
  std::vector<OperationPtr> dropped;
  for (const auto& [place, file] : receives_) dropped.insert(dropped.end(), file.begin(), file.end());
  for (const auto& [place, file] : arrivals_) {
    for (const Arrival& arrival : file) {
      if (arrival.local_send) dropped.push_back(arrival.local_send);
    }
  }
  receives_.clear();
  arrivals_.clear();
  return dropped;
}

}  // namespace backplane::specimen
