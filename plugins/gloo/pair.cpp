// SPDX-License-Identifier: Apache-2.0
#include "pair.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <tuple>

namespace backplane::gloo {
namespace {

using ::gloo::transport::tcp::UnboundBuffer;

constexpr const char* kNoMemoryForCancelled = "this rank has no memory to keep the message of a cancelled receive";

template <typename Entry>
bool is_for(const Entry& entry, const UnboundBuffer* buffer) {
  const BufferRef target(std::get<0>(entry));
  return target && target.get() == buffer;
}

}  // namespace

void Pair::send(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) {
  ProgressScope::attach(*this);
  ::gloo::transport::tcp::Pair::send(buffer, slot, offset, bytes);
}

void Pair::recv(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) {
  ProgressScope::attach(*this);
  ::gloo::transport::tcp::Pair::recv(buffer, slot, offset, bytes);
}

// Ensures that the payload has a live buffer of sufficient size, or a spill.
void Pair::prepare_payload() {
  if (rx_.ubuf) {
    if (!BufferRef(rx_.ubuf)) spill_payload({}, false);
    return;
  }
  const auto pending = localPendingRecv_.find(rx_.preamble.slot);
  if (pending == localPendingRecv_.end()) throw ::gloo::IoException("it sent a message that was not requested");
  if (owner_.may_reorder()) put_oldest_first(rx_.preamble.slot, pending->second);
  const UnboundBufferOp next = pending->second.front();
  pending->second.pop_front();
  if (pending->second.empty()) localPendingRecv_.erase(pending);
  const auto& [receiver, offset, room] = next;
  const BufferRef buffer(receiver);
  const bool orphaned = buffer && orphans_.contains(buffer.get(), rx_.preamble.slot);
  if (buffer) buffer->begin_message(rx_.preamble.length, room, rank_);
  if (!buffer || orphaned) return spill_payload(receiver, orphaned);
  if (rx_.preamble.length > room) {
    // Completed before the payload has arrived: a payload of any length must not delay the report, nor need memory.
    buffer->handleRecvCompletion(rank_);
    return spill_payload({}, false);
  }
  std::tie(rx_.ubuf, rx_.offset, rx_.nbytes) = next;
}

// A receive from any source is behind those that named this peer before the message was announced, or not in this
// queue.
void Pair::put_oldest_first(uint64_t slot, std::deque<UnboundBufferOp>& receives) {
  const auto oldest = std::min_element(receives.begin(), receives.end(), [](const auto& left, const auto& right) {
    return order_of(std::get<0>(left)) < order_of(std::get<0>(right));
  });
  const UnboundBufferOp first = *oldest;
  receives.erase(oldest);
  receives.push_front(first);
  owner_.swap_with_any_source(slot, rank_, receives.front());
}

void Pair::spill_payload(WeakBuffer receiver, bool orphaned) {
  auto spill = std::make_unique<Spill>();
  spill->slot = rx_.preamble.slot;
  spill->length = rx_.preamble.length;
  spill->arrived = rx_.nread - sizeof(rx_.preamble);
  spill->is_kept = orphaned;
  spill->receiver = std::move(receiver);
  rx_.ubuf = {};
  spill_ = std::move(spill);
}

void Pair::finish_spill() {
  const std::unique_ptr<Spill> arrived = std::move(spill_);
  rx_ = Op();
  if (const BufferRef receiver(arrived->receiver); receiver && arrived->is_kept) {
    keep_for_later(*arrived, *receiver.get());
  }
}

void Pair::keep_for_later(Spill& arrived, Buffer& orphan) {
  // An adopted orphan belongs to a receive. Otherwise a receive from any source may be waiting.
  if (orphans_.contains(&orphan, arrived.slot) &&
      owner_.offer_to_any_source(arrived.slot, rank_, arrived.kept.data(), arrived.length)) {
    return orphans_.retire(arrived.slot, orphan);
  }
  orphan.keep(std::move(arrived.kept));
  orphan.handleRecvCompletion(rank_);
}

bool Pair::withdraw_receive(const Buffer& buffer, uint64_t slot) noexcept {
  const std::lock_guard lock(m_);
  if (state_ == CLOSED) return false;
  if (const BufferRef target(rx_.ubuf); target && target.get() == &buffer) {
    keep_arriving(buffer, slot);
    return true;
  }
  const auto pending = localPendingRecv_.find(slot);
  if (pending == localPendingRecv_.end()) return false;
  auto& queue = pending->second;
  const auto found =
      std::find_if(queue.begin(), queue.end(), [&buffer](const auto& entry) { return is_for(entry, &buffer); });
  if (found == queue.end()) return false;
  queue.erase(found);
  try {
    queue_orphan(slot, queue);
  } catch (const std::exception&) {
    end(kNoMemoryForCancelled);
  }
  return true;
}

// Behind the receives that still wait, which get the older messages.
void Pair::queue_orphan(uint64_t slot, std::deque<UnboundBufferOp>& queue) {
  std::unique_ptr<Buffer> orphan = orphans_.make();
  queue.emplace_back(orphan->weak(), 0, 0);
  orphans_.add_youngest(slot, std::move(orphan));
}

// Takes the oldest receive that waits. Its message has been requested, so an orphan replaces it.
std::optional<Pair::UnboundBufferOp> Pair::take_waiting(uint64_t slot) {
  const auto pending = localPendingRecv_.find(slot);
  if (state_ == CLOSED || pending == localPendingRecv_.end() || pending->second.empty()) return {};
  auto& queue = pending->second;
  if (owner_.may_reorder()) put_oldest_first(slot, queue);
  const auto found = std::find_if(queue.begin(), queue.end(), [this, slot](const UnboundBufferOp& entry) {
    const BufferRef target(std::get<0>(entry));
    return target && !orphans_.contains(target.get(), slot);
  });
  if (found == queue.end()) return {};
  const UnboundBufferOp taken = *found;
  const auto index = found - queue.begin();
  queue_orphan(slot, queue);  // first, because it may throw
  queue.erase(queue.begin() + index);
  return taken;
}

// Discards the rest of the message that arrives.
void Pair::discard_arriving(uint64_t slot, uint64_t arrived) {
  auto spill = std::make_unique<Spill>();
  spill->slot = slot;
  spill->length = rx_.preamble.length;
  spill->arrived = arrived;
  rx_.ubuf = {};
  spill_ = std::move(spill);
}

// Makes a receive that waits the target of the message that arrives. `data` are its first `arrived` bytes. A receive
// without room for it ends at once.
bool Pair::redirect_arriving(uint64_t slot, const char* data, uint64_t arrived) {
  const std::optional<UnboundBufferOp> taken = take_waiting(slot);
  if (!taken) return false;
  const auto& [target, offset, room] = *taken;
  const BufferRef receiver(target);
  if (!receiver) return false;
  receiver->begin_message(rx_.preamble.length, room, rank_);
  if (rx_.preamble.length > room) {
    receiver->handleRecvCompletion(rank_);  // first: the other may find no memory
    discard_arriving(slot, arrived);
    return true;
  }
  if (arrived > 0) std::memcpy(static_cast<char*>(receiver->ptr) + offset, data, arrived);
  std::tie(rx_.ubuf, rx_.offset, rx_.nbytes) = *taken;
  rx_.nread = sizeof(rx_.preamble) + arrived;
  spill_.reset();
  return true;
}

// The message arrives in a buffer that is about to be destroyed: its bytes move to a receive that waits, or else to an
// orphan, which is the oldest.
void Pair::keep_arriving(const Buffer& buffer, uint64_t slot) noexcept {
  const char* const from = static_cast<const char*>(buffer.ptr) + rx_.offset;
  const uint64_t arrived = rx_.nread - sizeof(rx_.preamble);
  try {
    if (redirect_arriving(slot, from, arrived)) return;
    std::unique_ptr<Buffer> orphan = orphans_.make();
    orphan->begin_message(rx_.preamble.length, 0, rank_);
    auto spill = std::make_unique<Spill>();
    spill->slot = slot;
    spill->length = rx_.preamble.length;
    spill->is_kept = true;
    spill->receiver = orphan->weak();
    while (spill->arrived < arrived) {
      const std::span<char> to = spill->kept.room(spill->arrived, spill->length);
      const uint64_t bytes = std::min<uint64_t>(to.size(), arrived - spill->arrived);
      std::memcpy(to.data(), from + spill->arrived, bytes);
      spill->arrived += bytes;
    }
    orphans_.add_oldest(slot, std::move(orphan));
    spill_ = std::move(spill);
  } catch (const std::exception&) {
    end(kNoMemoryForCancelled);
  }
  rx_.ubuf = {};
}

bool Pair::arrives_for(const Buffer& orphan) const { return spill_ && BufferRef(spill_->receiver).get() == &orphan; }

Pair::Adopted Pair::adopt(Buffer& buffer, uint64_t slot) {
  const std::lock_guard lock(m_);
  orphans_.destroy_retired();
  std::unique_ptr<Buffer> orphan = orphans_.take_oldest(slot);
  if (!orphan) return {};
  const auto pending = localPendingRecv_.find(slot);
  if (pending != localPendingRecv_.end()) {
    for (auto& entry : pending->second) {
      if (!is_for(entry, orphan.get())) continue;
      entry = std::make_tuple(buffer.weak(), size_t{0}, buffer.size);
      return {true, nullptr};
    }
  }
  if (arrives_for(*orphan) && spill_->length > buffer.size) {  // fails without waiting for the rest
    discard_arriving(slot, spill_->arrived);
    buffer.deliver(nullptr, rx_.preamble.length, rank_);
    orphans_.retire(std::move(orphan));
    return {true, nullptr};
  }
  return {false, std::move(orphan)};
}

// Gives the message of an orphan to a receive that waits. Returns false if there is none.
bool Pair::hand_on(Buffer& orphan, uint64_t slot) {
  if (!orphan.has_received()) {
    return arrives_for(orphan) && redirect_arriving(slot, spill_->kept.data(), spill_->arrived);
  }
  if (const std::optional<UnboundBufferOp> taken = take_waiting(slot)) {
    if (const BufferRef receiver(std::get<0>(*taken)); receiver) {
      receiver->deliver(orphan.kept(), orphan.length(), rank_);
      return true;
    }
  }
  // A receive from any source may have come meanwhile.
  return owner_.offer_to_any_source(slot, rank_, orphan.kept(), orphan.length());
}

void Pair::give_back_orphan(std::unique_ptr<Buffer> orphan, uint64_t slot) noexcept {
  const std::lock_guard lock(m_);
  try {
    if (hand_on(*orphan, slot)) return;
    orphans_.add_oldest(slot, std::move(orphan));
  } catch (const std::exception&) {
    end(kNoMemoryForCancelled);
  }
}

bool Pair::has_filled_orphan(uint64_t slot) {
  const std::lock_guard lock(m_);
  return orphans_.has_filled(slot);
}

std::unique_ptr<Buffer> Pair::take_filled_orphan(uint64_t slot) {
  const std::lock_guard lock(m_);
  return orphans_.has_filled(slot) ? orphans_.take_oldest(slot) : nullptr;
}

// Without memory for a copy the connection ends: the peer has been told of the message.
void Pair::detach_send(const Buffer& buffer, uint64_t slot) noexcept {
  const std::lock_guard lock(m_);
  if (state_ == CLOSED) return;
  try {
    detached_.destroy_sent();
    detach_queued(buffer, slot);
  } catch (const std::exception&) {
    end("this rank cannot keep a message whose send has timed out or was cancelled: it has no memory for it, or the "
        "message is longer than 1 GiB");
  }
}

void Pair::detach_queued(const Buffer& buffer, uint64_t slot) {
  const auto pending = localPendingSend_.find(slot);
  if (pending != localPendingSend_.end()) {
    for (auto& entry : pending->second) {
      if (!is_for(entry, &buffer)) continue;
      const auto [target, offset, bytes] = entry;
      entry = std::make_tuple(detached_.copy(buffer, offset, bytes), size_t{0}, bytes);
      return;
    }
  }
  for (Op& op : tx_) {
    if (const BufferRef target(op.ubuf); !target || target.get() != &buffer) continue;
    op.ubuf = detached_.copy(buffer, op.offset, op.nbytes);
    op.offset = 0;
  }
}

}  // namespace backplane::gloo
