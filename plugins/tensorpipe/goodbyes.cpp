// SPDX-License-Identifier: Apache-2.0
#include "goodbyes.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace backplane::tensorpipe {

std::vector<Goodbye> DeferredGoodbyes::count(uint64_t express) {
  if (express > arrived_.express) arrived_ = {express, 0};
  if (express == arrived_.express && arrived_.messages < UINT64_MAX) ++arrived_.messages;
  return take_due();
}

std::vector<Goodbye> DeferredGoodbyes::end(uint64_t express) {
  if (express >= arrived_.express) arrived_ = {express, UINT64_MAX};
  return take_due();
}

bool DeferredGoodbyes::defer(const Pipe& pipe, std::unique_ptr<IncomingMessage>& received) {
  constexpr size_t kMost = 64;
  if (is_due(*received) || deferred_.size() == kMost) return false;
  deferred_.push_back({pipe, std::move(received)});
  return true;
}

std::vector<Goodbye> DeferredGoodbyes::take(const Pipe& pipe) {
  return take_if([&pipe](const Goodbye& each) { return each.pipe == pipe; });
}

bool DeferredGoodbyes::is_due(const IncomingMessage& goodbye) const {
  const ExpressPosition& sent = goodbye.express_position();
  if (sent.messages == 0 || arrived_.express > sent.express) return true;
  return arrived_.express == sent.express && arrived_.messages >= sent.messages;
}

std::vector<Goodbye> DeferredGoodbyes::take_due() {
  return take_if([this](const Goodbye& each) { return is_due(*each.received); });
}

std::vector<Goodbye> DeferredGoodbyes::take_if(const std::function<bool(const Goodbye&)>& wanted) {
  const auto first = std::stable_partition(deferred_.begin(), deferred_.end(),
                                           [&wanted](const Goodbye& each) { return !wanted(each); });
  std::vector<Goodbye> taken(std::make_move_iterator(first), std::make_move_iterator(deferred_.end()));
  deferred_.erase(first, deferred_.end());
  return taken;
}

}  // namespace backplane::tensorpipe
