// SPDX-License-Identifier: Apache-2.0
#include "sending.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <tuple>

namespace backplane::gloo {

bool Sending::write(Op& op, bool is_driver) {
  if (pair_.state_ == GlooPair::CLOSED) return false;
  if (pair_.state_ != GlooPair::CONNECTED) {
    pair_.tx_.push_back(std::move(op));  // written once connected
    return true;
  }
  const bool queued = !pair_.tx_.empty();  // a queued operation is the first in the queue; gloo writes a new one
                                           // directly only if the queue is empty
  BufferRef buffer(op.ubuf);
  const bool has_payload = op.getOpcode() == Op::SEND_UNBOUND_BUFFER;
  if (has_payload && !buffer) {
    if (link_.is_on_loop()) link_.close("a message was cancelled while it was being sent");
    return false;
  }
  if (!has_payload && !queued && is_driver) {
    pending_notifications_.append(reinterpret_cast<const char*>(&op.preamble), sizeof(op.preamble));
    return true;
  }
  while (op.nwritten < op.preamble.nbytes) {
    std::array<iovec, 3> pieces;
    pieces[0] = {pending_notifications_.data(), pending_notifications_.size()};
    int count = 0;
    pair_.prepareWrite(op, buffer.for_gloo(), &pieces[1], count);
    const std::optional<size_t> written = link_.send({pieces.data(), static_cast<size_t>(count) + 1});
    if (!written) {
      if (queued || !is_driver) return false;
      pair_.tx_.push_back(std::move(op));  // here, because gloo would wake its own thread
      return true;
    }
    const size_t of_pending = std::min(*written, pending_notifications_.size());
    pending_notifications_.erase(0, of_pending);
    op.nwritten += *written - of_pending;
  }
  pair_.writeComplete(op, buffer.for_gloo(), op.getOpcode());
  return true;
}

bool Sending::write_notifications() {
  while (!pending_notifications_.empty()) {
    iovec piece = {pending_notifications_.data(), pending_notifications_.size()};
    const std::optional<size_t> written = link_.send({&piece, 1});
    if (!written) return false;
    pending_notifications_.erase(0, *written);
  }
  return true;
}

bool Sending::write_queued() {
  if (!write_notifications()) return false;
  while (!pair_.tx_.empty() && write(pair_.tx_.front(), false)) pair_.tx_.pop_front();
  return pair_.tx_.empty();
}

void Sending::detach(const Buffer& buffer, uint64_t slot) noexcept {
  const std::lock_guard lock(pair_.m_);
  if (pair_.state_ == GlooPair::CLOSED) return;
  try {
    detached_.destroy_sent();
    detach_queued(buffer, slot);
  } catch (const std::exception&) {
    link_.end(
        "this rank cannot keep a message whose send has timed out or was cancelled: it has no memory for it, or the "
        "message is longer than 1 GiB");
  }
}

void Sending::detach_queued(const Buffer& buffer, uint64_t slot) {
  const auto pending = pair_.localPendingSend_.find(slot);
  if (pending != pair_.localPendingSend_.end()) {
    for (auto& entry : pending->second) {
      if (!is_for(entry, buffer)) continue;
      const auto [target, offset, bytes] = entry;
      entry = std::make_tuple(detached_.copy(buffer, offset, bytes), size_t{0}, bytes);
      return;
    }
  }
  for (Op& op : pair_.tx_) {
    if (const BufferRef target(op.ubuf); !target || target.get() != &buffer) continue;
    op.ubuf = detached_.copy(buffer, op.offset, op.nbytes);
    op.offset = 0;
  }
}

void Sending::fail(const std::exception_ptr& error) noexcept {
  for (const Op& op : pair_.tx_) {
    if (const BufferRef buffer(op.ubuf); buffer) buffer->fail(error);
  }
}

}  // namespace backplane::gloo
