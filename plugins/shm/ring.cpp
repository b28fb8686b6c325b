// SPDX-License-Identifier: Apache-2.0
#include "ring.hpp"

namespace backplane::shm {

Place Place::after(uint64_t position, uint64_t length) {
  const uint64_t offset = position % kRingSize;
  const uint64_t rounded = (length + 63) / 64 * 64;
  if (offset + rounded > kRingSize) position += kRingSize - offset;
  return {position, position + rounded};
}

bool Outbox::has_head() {
  if (next_ - read_heads_ < kHeads) return true;
  read_heads_ = channel_->read_heads.load();
  return next_ - read_heads_ < kHeads;
}

bool Outbox::has_bytes(const Place& place) {
  if (place.end - read_bytes_ <= kRingSize) return true;
  read_bytes_ = channel_->read_bytes.load();
  return place.end - read_bytes_ <= kRingSize;
}

// What was freed before the receiver sees the question is seen by whoever looks once more after it.
bool Outbox::ask_for_room() {
  if (channel_->blocked.load() != 0) return false;
  channel_->blocked.store(1);
  return true;
}

void Outbox::publish(Kind kind, uint64_t length) {
  Head& to = head();
  to.kind_and_length = static_cast<uint32_t>(kind) | static_cast<uint32_t>(length << 8);
  shm::publish(to.turn, ++next_, lightly_);
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
  const Place place = Place::after(position_, size);
  while (!has_head() || !has_bytes(place)) {
    if (!ask_for_room()) return false;
  }
  std::memcpy(channel_->data.data() + place.begin % kRingSize, data, size);
  position_ = place.end;
  Head& to = head();
  to.tag = tag;
  to.control = {id, size, {}};
  publish(kind, size);
  return true;
}

bool Outbox::put_control(Kind kind, uint64_t tag, uint64_t id, uint64_t size, uint64_t place) {
  while (!has_head()) {
    if (!ask_for_room()) return false;
  }
  Head& to = head();
  to.tag = tag;
  to.control = {id, size, {place, revoked_}};
  publish(kind, 0);
  return true;
}

bool Outbox::take_credit(uint64_t size) {
  if (size > kEagerLimit) return false;
  const uint64_t after = sent_ + size + kOverhead;
  if (after - taken_ > kWindow) taken_ = channel_->taken.load();
  if (after - taken_ > kWindow) return false;
  sent_ = after;
  return true;
}

void Outbox::revoke() noexcept {
  channel_->revoked.store(++revoked_);
  full_fence();
}

bool Inbox::has_revoked(const Loan& loan) const noexcept {
  full_fence();
  return channel_->revoked.load() != loan.revoked;
}

Inbox::Look Inbox::look(Arrival& arrival) {
  if (!is_open_ && !(is_open_ = opened_->load() != 0)) return Look::kNothing;
  const Head& from = channel_->heads[next_ % kHeads];
  if (from.turn.load() != next_ + 1) return Look::kNothing;
  const uint32_t word = from.kind_and_length;
  arrival.kind = static_cast<Kind>(word & 255);
  arrival.length = word >> 8;
  arrival.tag = from.tag;
  after_ = position_;
  const bool is_whole = arrival.kind == Kind::kInline || arrival.kind == Kind::kEager;
  eager_ = is_whole ? arrival.length + kOverhead : 0;
  if (arrived_ + eager_ - taken_ > kWindow) return Look::kNonsense;
  switch (arrival.kind) {
    case Kind::kInline:
      if (arrival.length > kHeadData) return Look::kNonsense;
      bytes_ = from.bytes;
      arrival.data = bytes_.data();
      return Look::kSomething;
    case Kind::kEager:
    case Kind::kData: {
      if (arrival.length > kPiece || (arrival.kind == Kind::kEager && arrival.length > kEagerLimit)) {
        return Look::kNonsense;
      }
      arrival.id = from.control.id;
      const Place place = Place::after(position_, arrival.length);
      arrival.data = channel_->data.data() + place.begin % kRingSize;
      after_ = place.end;
      return Look::kSomething;
    }
    case Kind::kAnnounce:
    case Kind::kReady:
    case Kind::kWithdraw:
      arrival.id = from.control.id;
      arrival.size = from.control.size;
      arrival.loan = from.control.loan;
      arrival.data = nullptr;
      return Look::kSomething;
  }
  return Look::kNonsense;
}

bool Inbox::release() {
  channel_->read_bytes.store(position_, std::memory_order_release);
  shm::publish(channel_->read_heads, next_, lightly_);
  if (channel_->blocked.load() == 0) return false;
  channel_->blocked.store(0);
  return true;
}

}  // namespace backplane::shm
