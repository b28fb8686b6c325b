// SPDX-License-Identifier: Apache-2.0
#include "receive_queue.hpp"

#include <gloo/common/error.h>

#include <algorithm>
#include <tuple>

#include "transport.hpp"

namespace backplane::gloo {

ReceiveQueue::Posted ReceiveQueue::take_next(uint64_t slot) {
  const auto pending = pair_.localPendingRecv_.find(slot);
  if (pending == pair_.localPendingRecv_.end()) {
    throw ::gloo::IoException("it sent a message that was not requested");
  }
  if (owner_.may_reorder()) put_oldest_first(slot, pending->second);
  const Posted next = pending->second.front();
  pending->second.pop_front();
  if (pending->second.empty()) pair_.localPendingRecv_.erase(pending);
  return next;
}

// A receive from any source is behind those that named this peer before the message was announced, or not in this
// queue.
void ReceiveQueue::put_oldest_first(uint64_t slot, std::deque<Posted>& receives) {
  const auto oldest = std::min_element(receives.begin(), receives.end(), [](const auto& left, const auto& right) {
    return order_of(std::get<0>(left)) < order_of(std::get<0>(right));
  });
  const Posted first = *oldest;
  receives.erase(oldest);
  receives.push_front(first);
  owner_.swap_with_any_source(slot, pair_.rank_, receives.front());
}

// Behind the receives that still wait, which get the older messages.
void ReceiveQueue::add_orphan(uint64_t slot, std::deque<Posted>& queue) {
  std::unique_ptr<Buffer> orphan = orphans_.make();
  queue.emplace_back(orphan->weak(), 0, 0);
  orphans_.add_youngest(slot, std::move(orphan));
}

std::optional<ReceiveQueue::Posted> ReceiveQueue::take_waiting(uint64_t slot) {
  const auto pending = pair_.localPendingRecv_.find(slot);
  if (pair_.state_ == GlooPair::CLOSED || pending == pair_.localPendingRecv_.end() || pending->second.empty())
    return {};
  auto& queue = pending->second;
  if (owner_.may_reorder()) put_oldest_first(slot, queue);
  const auto found = std::find_if(queue.begin(), queue.end(), [this, slot](const Posted& entry) {
    const BufferRef target(std::get<0>(entry));
    return target && !orphans_.contains(target.get(), slot);
  });
  if (found == queue.end()) return {};
  const Posted taken = *found;
  const auto index = found - queue.begin();
  add_orphan(slot, queue);  // first, because it may throw
  queue.erase(queue.begin() + index);
  return taken;
}

bool ReceiveQueue::orphan(const Buffer& buffer, uint64_t slot) {
  const auto pending = pair_.localPendingRecv_.find(slot);
  if (pending == pair_.localPendingRecv_.end()) return false;
  auto& queue = pending->second;
  const auto found =
      std::find_if(queue.begin(), queue.end(), [&buffer](const Posted& entry) { return is_for(entry, buffer); });
  if (found == queue.end()) return false;
  queue.erase(found);
  add_orphan(slot, queue);
  return true;
}

bool ReceiveQueue::replace(const Buffer& orphan, Buffer& buffer, uint64_t slot) {
  const auto pending = pair_.localPendingRecv_.find(slot);
  if (pending == pair_.localPendingRecv_.end()) return false;
  for (Posted& entry : pending->second) {
    if (!is_for(entry, orphan)) continue;
    entry = std::make_tuple(buffer.weak(), size_t{0}, buffer.size);
    return true;
  }
  return false;
}

}  // namespace backplane::gloo
