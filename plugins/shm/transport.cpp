// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include "memory.hpp"

namespace backplane::shm {

RingSpan RingSpan::after(uint64_t position, uint64_t length, uint64_t ring_size) {
  const uint64_t offset = position % ring_size;
  const uint64_t rounded = (length + 63) / 64 * 64;
  if (offset + rounded > ring_size) position += ring_size - offset;
  return {position, position + rounded};
}

void Outbox::prepare(bool for_messages) {
  if (for_messages && !has_ring_) {
    populate(ring_.data, ring_.size, "messages");
    has_ring_ = true;
  }
  if (is_open_) return;
  populate(reinterpret_cast<std::byte*>(channel_), sizeof *channel_, "messages");
  open();
}

bool Outbox::has_head() {
  if (next_ - heads_read_ < kHeads) return true;
  heads_read_ = channel_->heads_read.load();
  return next_ - heads_read_ < kHeads;
}

bool Outbox::has_bytes(const RingSpan& span) {
  if (span.end - bytes_read_ <= ring_.size) return true;
  bytes_read_ = channel_->bytes_read.load();
  return span.end - bytes_read_ <= ring_.size;
}

// Requests a wake-up. The caller must check for room again, because room may be freed before the receiver sees the
// request.
bool Outbox::ask_for_room() {
  if (channel_->blocked.load() != 0) return false;
  channel_->blocked.store(1);
  return true;
}

void Outbox::publish(Kind kind, uint64_t length) {
  Head& to = head();
  to.kind_and_length = static_cast<uint32_t>(kind) | static_cast<uint32_t>(length << 8);
  shm::publish(to.sequence, ++next_, membarrier_);
}

bool Outbox::put_inline(uint64_t tag, const void* data, uint64_t size) {
  while (!has_head()) {
    if (!ask_for_room()) return false;
  }
  Head& to = head();
  to.tag = tag;
  if (size > 0) std::memcpy(to.bytes.data(), data, size);
  publish(Kind::kInline, size);
  return true;
}

bool Outbox::put_piece(Kind kind, uint64_t tag, uint64_t id, const void* data, uint64_t size) {
  const RingSpan span = RingSpan::after(position_, size, ring_.size);
  while (!has_head() || !has_bytes(span)) {
    if (!ask_for_room()) return false;
  }
  std::memcpy(ring_.data + span.begin % ring_.size, data, size);
  position_ = span.end;
  Head& to = head();
  to.tag = tag;
  to.control = {id, size, {}};
  publish(kind, size);
  return true;
}

bool Outbox::put_control(Kind kind, uint64_t tag, uint64_t id, uint64_t size, uint64_t location) {
  while (!has_head()) {
    if (!ask_for_room()) return false;
  }
  Head& to = head();
  to.tag = tag;
  to.control = {id, size, {location, revocations_}};
  publish(kind, 0);
  return true;
}

bool Outbox::take_credit(uint64_t size) {
  if (size > kMaxEager) return false;
  const uint64_t after = sent_ + size + kOverhead;
  if (after - taken_ > kWindow) taken_ = channel_->taken.load();
  if (after - taken_ > kWindow) return false;
  sent_ = after;
  return true;
}

void Outbox::revoke() noexcept {
  channel_->revoked.store(++revocations_);
  full_fence();
}

bool Inbox::has_revoked(const Exposure& exposure) const noexcept {
  full_fence();
  return channel_->revoked.load() != exposure.revoked;
}

Inbox::Peek Inbox::peek(Arrival& arrival) {
  if (!is_open_ && !(is_open_ = opened_->load() != 0)) return Peek::kNone;
  const Head& from = channel_->heads[next_ % kHeads];
  if (from.sequence.load() != next_ + 1) return Peek::kNone;
  const uint32_t word = from.kind_and_length;
  arrival.kind = static_cast<Kind>(word & 255);
  arrival.length = word >> 8;
  arrival.tag = from.tag;
  after_ = position_;
  const bool is_whole = arrival.kind == Kind::kInline || arrival.kind == Kind::kEager;
  eager_ = is_whole ? arrival.length + kOverhead : 0;
  if (arrived_ + eager_ - taken_ > kWindow) return Peek::kMalformed;
  switch (arrival.kind) {
    case Kind::kInline:
      if (arrival.length > kHeadData) return Peek::kMalformed;
      bytes_ = from.bytes;
      arrival.data = bytes_.data();
      return Peek::kMessage;
    case Kind::kEager:
    case Kind::kData: {
      if (arrival.length > (arrival.kind == Kind::kEager ? kMaxEager : kPiece)) return Peek::kMalformed;
      arrival.id = from.control.id;
      const RingSpan span = RingSpan::after(position_, arrival.length, ring_.size);
      arrival.data = ring_.data + span.begin % ring_.size;
      after_ = span.end;
      return Peek::kMessage;
    }
    case Kind::kAnnounce:
    case Kind::kReady:
    case Kind::kWithdraw:
      arrival.id = from.control.id;
      arrival.size = from.control.size;
      arrival.exposure = from.control.exposure;
      arrival.data = nullptr;
      return Peek::kMessage;
  }
  return Peek::kMalformed;
}

bool Inbox::release() {
  channel_->bytes_read.store(position_, std::memory_order_release);
  shm::publish(channel_->heads_read, next_, membarrier_);
  if (channel_->blocked.load() == 0) return false;
  channel_->blocked.store(0);
  return true;
}

}  // namespace backplane::shm
