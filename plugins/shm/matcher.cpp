// SPDX-License-Identifier: Apache-2.0
#include "matcher.hpp"

#include <algorithm>

#include "backplane/sdk/probe.hpp"

namespace backplane::shm {
namespace {

bool matches(const Operation& receive, int32_t source, uint64_t tag) {
  return sdk::matches_tag(receive.tag, tag) && (receive.peer == BP_ANY_SOURCE || receive.peer == source);
}

}  // namespace

Operation* Matcher::take_receive(int32_t source, uint64_t tag) {
  const auto found = std::find_if(posted_.begin(), posted_.end(),
                                  [source, tag](const Operation* each) { return matches(*each, source, tag); });
  if (found == posted_.end()) return nullptr;
  Operation* const receive = *found;
  posted_.erase(found);
  return receive;
}

std::list<Message>::iterator Matcher::find_message(int32_t source, uint64_t tag) {
  return std::find_if(messages_.begin(), messages_.end(), [source, tag](const Message& each) {
    return sdk::matches_tag(tag, each.tag) && (source == BP_ANY_SOURCE || source == each.source);
  });
}

std::optional<Message> Matcher::take_message(int32_t source, uint64_t tag) {
  const auto found = find_message(source, tag);
  if (found == messages_.end()) return std::nullopt;
  std::optional<Message> message = std::move(*found);
  messages_.erase(found);
  return message;
}

const Message* Matcher::probe(int32_t source, uint64_t tag) {
  const auto found = find_message(source, tag);
  if (found == messages_.end()) return nullptr;
  probed_.splice(probed_.end(), messages_, found);
  return &*found;
}

Message Matcher::take_probed(const bp_message* probed) {
  const auto found = std::find_if(probed_.begin(), probed_.end(), [probed](const Message& each) {
    return reinterpret_cast<const bp_message*>(&each) == probed;
  });
  Message taken = std::move(*found);
  probed_.erase(found);
  return taken;
}

void Matcher::remove_messages(const std::function<bool(const Message&)>& which, const sdk::Failure& why) {
  std::erase_if(messages_, which);
  for (Message& each : probed_) {
    if (!each.lost && which(each)) each.lost.emplace(why);
  }
}

void Matcher::post(Operation& receive) {
  const auto before = std::find_if(posted_.rbegin(), posted_.rend(),
                                   [&receive](const Operation* each) { return each->order < receive.order; });
  posted_.insert(before.base(), &receive);
}

std::vector<Operation*> Matcher::take_receives(const std::function<bool(const Operation&)>& which) {
  std::vector<Operation*> taken;
  for (auto each = posted_.begin(); each != posted_.end();) {
    if (which(**each)) {
      taken.push_back(*each);
      each = posted_.erase(each);
    } else {
      ++each;
    }
  }
  return taken;
}

}  // namespace backplane::shm
