// SPDX-License-Identifier: Apache-2.0
#include "arrival.hpp"

#include <gloo/common/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "transport.hpp"

namespace backplane::gloo {
namespace {

constexpr size_t kDiscardedAtOnce = size_t{64} * 1024;

}  // namespace

Arrival::Result Arrival::read() {
  if (!read_header()) return Result::kIncomplete;
  const size_t opcode = pair_.rx_.preamble.opcode;
  if (opcode == GlooPair::Op::SEND_UNBOUND_BUFFER) {
    if (!spill_) begin_payload();
    if (spill_) return read_spill() ? Result::kDone : Result::kIncomplete;
    return read_payload() ? Result::kRead : Result::kIncomplete;
  }
  if (opcode != GlooPair::Op::NOTIFY_SEND_READY && opcode != GlooPair::Op::NOTIFY_RECV_READY) {
    throw ::gloo::IoException("it sent data that are no message");  // gloo would wait for a registered buffer
  }
  return Result::kRead;
}

// Returns false if it is incomplete or the connection has ended.
bool Arrival::read_header() {
  GlooPair::Op& rx = pair_.rx_;
  while (rx.nread < sizeof(rx.preamble)) {
    const size_t got = link_.receive(reinterpret_cast<char*>(&rx.preamble) + rx.nread, sizeof(rx.preamble) - rx.nread);
    if (got == 0) return false;
    rx.nread += got;
  }
  return true;
}

// Ensures that the payload has a live buffer of sufficient size, or a spill.
void Arrival::begin_payload() {
  GlooPair::Op& rx = pair_.rx_;
  if (rx.ubuf) {
    if (!BufferRef(rx.ubuf)) spill({}, false);
    return;
  }
  const ReceiveQueue::Posted next = queue_.take_next(rx.preamble.slot);
  const auto& [receiver, offset, room] = next;
  const BufferRef buffer(receiver);
  const bool orphaned = buffer && queue_.orphans().contains(buffer.get(), rx.preamble.slot);
  if (buffer) buffer->begin_message(rx.preamble.length, room, pair_.rank_);
  if (!buffer || orphaned) return spill(receiver, orphaned);
  if (rx.preamble.length > room) {
    // Completed before the payload has arrived: a payload of any length must not delay the report, nor need memory.
    buffer->handleRecvCompletion(pair_.rank_);
    return spill({}, false);
  }
  std::tie(rx.ubuf, rx.offset, rx.nbytes) = next;
}

void Arrival::spill(WeakBuffer receiver, bool orphaned) {
  GlooPair::Op& rx = pair_.rx_;
  auto spilt = std::make_unique<Spill>();
  spilt->slot = rx.preamble.slot;
  spilt->length = rx.preamble.length;
  spilt->arrived = rx.nread - sizeof(rx.preamble);
  spilt->is_kept = orphaned;
  spilt->receiver = std::move(receiver);
  rx.ubuf = {};
  spill_ = std::move(spilt);
}

// Returns false if it is incomplete or the connection has ended.
bool Arrival::read_payload() {
  GlooPair::Op& rx = pair_.rx_;
  const BufferRef buffer(rx.ubuf);
  if (!buffer) return false;
  const size_t end = sizeof(rx.preamble) + rx.preamble.length;
  while (rx.nread < end) {
    char* const start = static_cast<char*>(buffer->ptr) + rx.offset;
    const size_t got = link_.receive(start + (rx.nread - sizeof(rx.preamble)), end - rx.nread);
    if (got == 0) return false;
    rx.nread += got;
  }
  return true;
}

// Returns false if it is incomplete or the connection has ended.
bool Arrival::read_spill() {
  std::array<char, kDiscardedAtOnce> discarded;
  while (spill_->arrived < spill_->length) {
    std::span<char> to = spill_->is_kept ? spill_->kept.room(spill_->arrived, spill_->length) : discarded;
    if (to.size() > spill_->length - spill_->arrived) to = to.first(spill_->length - spill_->arrived);
    const size_t got = link_.receive(to.data(), to.size());
    if (got == 0) return false;
    spill_->arrived += got;
  }
  finish_spill();
  return true;
}

void Arrival::finish_spill() {
  const std::unique_ptr<Spill> arrived = std::move(spill_);
  pair_.rx_ = GlooPair::Op();
  if (const BufferRef receiver(arrived->receiver); receiver && arrived->is_kept) {
    keep_for_later(*arrived, *receiver.get());
  }
}

void Arrival::keep_for_later(Spill& arrived, Buffer& orphan) {
  // An adopted orphan belongs to a receive. Otherwise a receive from any source may be waiting.
  if (queue_.orphans().contains(&orphan, arrived.slot) &&
      owner_.offer_to_any_source(arrived.slot, pair_.rank_, arrived.kept.data(), arrived.length)) {
    return queue_.orphans().retire(arrived.slot, orphan);
  }
  orphan.keep(std::move(arrived.kept));
  orphan.handleRecvCompletion(pair_.rank_);
}

bool Arrival::is_into(const Buffer& buffer) const {
  const BufferRef target(pair_.rx_.ubuf);
  return target && target.get() == &buffer;
}

bool Arrival::is_kept_for(const Buffer& orphan) const { return spill_ && BufferRef(spill_->receiver).get() == &orphan; }

void Arrival::leave_buffer(const Buffer& buffer, uint64_t slot) {
  GlooPair::Op& rx = pair_.rx_;
  const char* const from = static_cast<const char*>(buffer.ptr) + rx.offset;
  const uint64_t arrived = rx.nread - sizeof(rx.preamble);
  try {
    if (!redirect(slot, from, arrived)) keep(slot, from, arrived);
  } catch (const std::exception&) {
    rx.ubuf = {};
    throw;
  }
}

// Keeps the message, whose first bytes are `data`, for a new orphan.
void Arrival::keep(uint64_t slot, const char* data, uint64_t arrived) {
  GlooPair::Op& rx = pair_.rx_;
  std::unique_ptr<Buffer> orphan = queue_.orphans().make();
  orphan->begin_message(rx.preamble.length, 0, pair_.rank_);
  auto spilt = std::make_unique<Spill>();
  spilt->slot = slot;
  spilt->length = rx.preamble.length;
  spilt->is_kept = true;
  spilt->receiver = orphan->weak();
  while (spilt->arrived < arrived) {
    const std::span<char> to = spilt->kept.room(spilt->arrived, spilt->length);
    const uint64_t bytes = std::min<uint64_t>(to.size(), arrived - spilt->arrived);
    std::memcpy(to.data(), data + spilt->arrived, bytes);
    spilt->arrived += bytes;
  }
  queue_.orphans().add_oldest(slot, std::move(orphan));
  spill_ = std::move(spilt);
  rx.ubuf = {};
}

void Arrival::refuse_kept(uint64_t slot, Buffer& receiver) {
  discard_rest(slot, spill_->arrived);
  receiver.begin_message(pair_.rx_.preamble.length, receiver.size, pair_.rank_);
  receiver.handleRecvCompletion(pair_.rank_);
}

void Arrival::discard_rest(uint64_t slot, uint64_t arrived) {
  auto spilt = std::make_unique<Spill>();
  spilt->slot = slot;
  spilt->length = pair_.rx_.preamble.length;
  spilt->arrived = arrived;
  pair_.rx_.ubuf = {};
  spill_ = std::move(spilt);
}

// Makes a receive that waits the target of the message. `data` are its first `arrived` bytes. A receive without room
// for it ends at once.
bool Arrival::redirect(uint64_t slot, const char* data, uint64_t arrived) {
  GlooPair::Op& rx = pair_.rx_;
  const std::optional<ReceiveQueue::Posted> taken = queue_.take_waiting(slot);
  if (!taken) return false;
  const auto& [target, offset, room] = *taken;
  const BufferRef receiver(target);
  if (!receiver) return false;
  receiver->begin_message(rx.preamble.length, room, pair_.rank_);
  if (rx.preamble.length > room) {
    receiver->handleRecvCompletion(pair_.rank_);  // first: the other may find no memory
    discard_rest(slot, arrived);
    return true;
  }
  if (arrived > 0) std::memcpy(static_cast<char*>(receiver->ptr) + offset, data, arrived);
  std::tie(rx.ubuf, rx.offset, rx.nbytes) = *taken;
  rx.nread = sizeof(rx.preamble) + arrived;
  spill_.reset();
  return true;
}

void Arrival::fail(const std::exception_ptr& error) noexcept {
  const auto tell = [&error](const WeakBuffer& target) {
    if (const BufferRef buffer(target); buffer) buffer->fail(error);
  };
  tell(pair_.rx_.ubuf);
  if (spill_) tell(spill_->receiver);
}

}  // namespace backplane::gloo
