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

std::optional<Message> Matcher::take_message(int32_t source, uint64_t tag) {
  const auto found = std::find_if(messages_.begin(), messages_.end(), [source, tag](const Message& each) {
    return sdk::matches_tag(tag, each.tag) && (source == BP_ANY_SOURCE || source == each.source);
  });
  if (found == messages_.end()) return std::nullopt;
  std::optional<Message> message = std::move(*found);
  messages_.erase(found);
  return message;
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
