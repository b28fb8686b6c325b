// SPDX-License-Identifier: Apache-2.0
//
// The definitions of messenger.hpp.
#pragma once

#include <new>

#include "messenger.hpp"

namespace backplane::sdk {

inline Messenger::Messenger(int32_t rank, int32_t world_size, std::function<void(int32_t peer)> on_ready)
    : Messenger(rank, world_size, std::move(on_ready), Limits()) {}

inline Messenger::Messenger(int32_t rank, int32_t world_size, std::function<void(int32_t peer)> on_ready,
                            const Limits& limits, OnData on_data)
    : rank_(rank),
      limits_(limits),
      on_ready_(std::move(on_ready)),
      on_data_(std::move(on_data)),
      mailbox_(limits.eager, limits.window) {
  peers_.reserve(static_cast<size_t>(world_size));
  for (int32_t peer = 0; peer < world_size; ++peer) {
    peers_.push_back({SendQueue(limits_, static_cast<bool>(on_data_)), {}, {}});
  }
}

inline Messenger::Peer& Messenger::at(int32_t peer) { return peers_[static_cast<size_t>(peer)]; }

inline Messenger::Frame Messenger::control(uint32_t kind, uint64_t tag, uint64_t id, uint64_t size) {
  Frame frame;
  frame.head = {kind, 0, tag, id, size};
  return frame;
}

inline void Messenger::refuse_frame(int32_t peer, const std::string& what) {
  throw Failure(BP_PEER_LOST, "rank " + std::to_string(peer) + " sent a malformed frame: " + what, peer);
}

inline size_t Messenger::frame_size(const std::byte* bytes, uint64_t max_payload) {
  Head head{};
  std::memcpy(&head, bytes, kHeadSize);
  const bool is_known = head.kind >= detail::kEager && head.kind <= detail::kCredit;
  if (!is_known || head.payload > (detail::carries_data(head.kind) ? max_payload : 0)) {
    throw Failure(BP_PEER_LOST, "received a malformed frame; run the same version of this backend on all ranks");
  }
  return kHeadSize + head.payload;
}

inline std::unique_ptr<CompletionWork> Messenger::submit(const bp_op& op) {
  const uint64_t width = bp_dtype_size(op.dtype);
  if (op.kind == BP_SEND) return send(op.peer, op.tag, op.input.data, op.input.count * width);
  if (op.kind == BP_RECV) {
    return recv({op.peer, op.tag, op.output.data, op.output.count * width, op.result, nullptr, 0, false}, op.message);
  }
  throw Failure(BP_UNSUPPORTED, "this backend has no native collectives; the core runs them over send and recv");
}

inline std::unique_ptr<CompletionWork> Messenger::recv(Receive receive, bp_message* message) {
  std::shared_ptr<Completion> received = receive.received;
  std::unique_ptr<CompletionWork> work;
  // Allocates before it posts: a caller that gets an out-of-memory failure frees its buffer.
  try {
    if (!received) received = std::make_shared<Completion>();
    work = std::make_unique<CompletionWork>(received, [this, which = received.get()] {
      guarded(nullptr, [this, which] {  // on out-of-memory, the receive is not cancelled
        cancel_recv(which);
        return BP_OK;
      });
    });
  } catch (const std::bad_alloc&) {
    if (message != nullptr) mailbox_.drop(message);
    throw;
  }
  receive.received = received;
  if (message == nullptr) {
    mailbox_.take(std::move(receive));
  } else {
    mailbox_.take(message, std::move(receive));
  }
  if (received->wait(0)) return nullptr;
  return work;
}

inline std::unique_ptr<CompletionWork> Messenger::send_to_self(uint64_t tag, const void* data, uint64_t size) {
  std::shared_ptr<Completion> sent = mailbox_.put(rank_, tag, data, size);
  if (!sent || sent->wait(0)) return nullptr;
  try {
    return std::make_unique<CompletionWork>(sent, [this, which = sent.get()] { mailbox_.cancel(which); });
  } catch (const std::bad_alloc&) {
    mailbox_.cancel(sent.get());
    throw;
  }
}

inline std::unique_ptr<CompletionWork> Messenger::send(int32_t peer, uint64_t tag, const void* data, uint64_t size,
                                                       std::shared_ptr<Completion> sent) {
  if (peer == rank_ && !on_data_) return send_to_self(tag, data, size);
  const auto* bytes = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  Peer& p = at(peer);
  if (aborted_) throw Failure(*aborted_);
  if (p.lost) throw Failure(*p.lost);
  const bool is_eager = size <= limits_.eager && p.sending.has_window(size);
  const uint64_t id = ++next_id_;
  Frame frame = control(is_eager ? detail::kEager : detail::kAnnounce, tag, id, size);
  if (is_eager) frame.head.payload = static_cast<uint32_t>(size);
  if (is_eager && !limits_.borrows_eager) {
    if (size > 0) frame.copy.assign(bytes, bytes + size);
    frame.data = frame.copy;
    queue(peer, std::move(frame));
    p.sending.use_window(size);
    return nullptr;
  }
  if (!sent) sent = std::make_shared<Completion>();
  auto work = std::make_unique<CompletionWork>(sent, [this, peer, id] {
    guarded(nullptr, [this, peer, id] {  // on out-of-memory, the send is not cancelled
      cancel_send(peer, id);
      return BP_OK;
    });
  });
  auto buffer = std::make_shared<BorrowedBuffer>(std::move(sent));
  std::map<uint64_t, SendQueue::Announced> announced;
  if (is_eager) {
    frame.data = {bytes, size};
    frame.buffer = std::move(buffer);
  } else {
    announced.emplace(id, SendQueue::Announced{bytes, size, 0, std::move(buffer)});
  }
  queue(peer, std::move(frame));
  p.sending.announce(announced);  // nothing fails from here on
  if (is_eager) p.sending.use_window(size);
  return work;
}

// Under the lock.
inline void Messenger::queue(int32_t peer, Frame frame) {
  if (aborted_ || at(peer).lost) return;
  at(peer).sending.add(std::move(frame));
  on_ready_(peer);
}

inline bool Messenger::has_frame(const Peer& p) const { return !aborted_ && !p.lost && p.sending.has_frame(); }

inline bool Messenger::has_frame(int32_t peer) {
  const std::lock_guard lock(mutex_);
  return has_frame(at(peer));
}

inline bool Messenger::next(int32_t peer, Frame& frame) {
  const std::lock_guard lock(mutex_);
  Peer& p = at(peer);
  if (!has_frame(p)) return false;
  p.sending.take(frame);
  return true;
}

inline bool Messenger::next(int32_t peer, Bytes& bytes) {
  const std::lock_guard lock(mutex_);
  Peer& p = at(peer);
  p.sending.confirm();
  if (!has_frame(p)) {
    changed_.notify_all();
    return false;
  }
  p.sending.take(bytes);
  return true;
}

inline void Messenger::not_carried(int32_t peer) {
  const std::lock_guard lock(mutex_);
  at(peer).sending.refuse(at(peer).lost);
  changed_.notify_all();
}

inline void Messenger::arrived(int32_t peer, std::span<const std::byte> bytes) {
  Head head{};
  if (bytes.size() < kHeadSize) refuse_frame(peer, "it is shorter than a head");
  std::memcpy(&head, bytes.data(), kHeadSize);
  arrived(peer, head, bytes.subspan(kHeadSize));
}

inline void Messenger::arrived(int32_t peer, const Head& head, std::span<const std::byte> data,
                               const Mailbox::Keep& keep) {
  if (head.payload != data.size() || (!data.empty() && !detail::carries_data(head.kind))) {
    refuse_frame(peer, "it has " + std::to_string(data.size()) + " bytes of data, its head, of kind " +
                           std::to_string(head.kind) + ", names " + std::to_string(head.payload));
  }
  switch (head.kind) {
    case detail::kEager:
      if (data.size() > limits_.eager) refuse_frame(peer, "it is too large to be sent at once");
      return mailbox_.deliver(
          peer, head.tag, data, [this, peer, size = head.payload] { add_credit(peer, size + kOverhead); }, keep);
    case detail::kAnnounce:
      return announce_arrived(peer, head);
    case detail::kReady:
      return ready_arrived(peer, head);
    case detail::kData:
      return on_data_ ? data_arrived_out_of_band(peer, head) : data_arrived(peer, head.id, data);
    case detail::kWithdraw:
      return withdraw_arrived(peer, head.id);
    case detail::kCredit: {
      const std::lock_guard lock(mutex_);
      at(peer).sending.return_window(head.size);
      return;
    }
    default:
      refuse_frame(peer, "kind " + std::to_string(head.kind) + " is unknown");
  }
}

inline void Messenger::announce_arrived(int32_t peer, const Head& head) {
  {
    const std::lock_guard lock(mutex_);
    if (head.size > INT64_MAX) {
      refuse_frame(peer, "it announces a message of " + std::to_string(head.size) + " bytes");
    }
    if (!at(peer).in.emplace(head.id, Incoming{head.tag, head.size, 0, {}, {}}).second) {
      refuse_frame(peer, "it announces message " + std::to_string(head.id) + " again");
    }
  }
  mailbox_.announce(peer, head.tag, head.size, head.id,
                    [this, peer, id = head.id](Receive* receive) { return fetch(peer, id, receive); });
}

inline void Messenger::ready_arrived(int32_t peer, const Head& head) {
  const std::lock_guard lock(mutex_);
  SendQueue& sending = at(peer).sending;
  if (head.size != 0) {  // its receive was too small; it counts as received
    sending.receiver_discards(head.id);
  } else if (sending.receiver_is_ready(head.id)) {
    on_ready_(peer);
  }
}

// An eager message of the peer was received. The mailbox's lock is held.
inline void Messenger::add_credit(int32_t peer, uint64_t size) {
  const std::lock_guard lock(mutex_);
  if (at(peer).sending.add_credit(size)) on_ready_(peer);
}

// A receive has matched an announced message; null: it is too small. The mailbox's lock is held.
inline bool Messenger::fetch(int32_t peer, uint64_t id, Receive* receive) {
  const std::lock_guard lock(mutex_);
  const auto message = at(peer).in.find(id);
  if (message == at(peer).in.end()) return false;  // withdrawn, lost or aborted meanwhile
  Incoming& m = message->second;
  const bool has_begun = !m.stash.empty();
  if (receive == nullptr) {
    if (!has_begun) queue(peer, control(detail::kReady, 0, id, 1));
    at(peer).in.erase(message);  // later data is discarded
    return true;
  }
  if (has_begun) std::memcpy(receive->data, m.stash.data(), m.offset);
  if (has_begun && m.offset == m.size) {
    receive->received->finish();
    at(peer).in.erase(message);
    return true;
  }
  if (!has_begun) queue(peer, control(detail::kReady, 0, id, 0));
  m.receive = *receive;
  m.stash = {};
  return true;
}

inline void Messenger::data_arrived(int32_t peer, uint64_t id, std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  const auto message = at(peer).in.find(id);
  if (message == at(peer).in.end()) return;
  Incoming& m = message->second;
  if (!m.receive && m.stash.empty()) {
    refuse_frame(peer, "its data are of message " + std::to_string(id) + ", which was not requested");
  }
  if (data.size() > m.size - m.offset) {
    refuse_frame(peer, "its data exceed message " + std::to_string(id) + " of " + std::to_string(m.size) + " bytes");
  }
  std::byte* to = m.receive ? static_cast<std::byte*>(m.receive->data) : m.stash.data();
  if (!data.empty()) std::memcpy(to + m.offset, data.data(), data.size());
  m.offset += data.size();
  if (m.offset < m.size || !m.receive) return;
  m.receive->received->finish();
  at(peer).in.erase(message);
}

inline void Messenger::data_arrived_out_of_band(int32_t peer, const Head& head) {
  const std::lock_guard lock(mutex_);
  const auto message = at(peer).in.find(head.id);
  if (message == at(peer).in.end() || !message->second.receive) {
    refuse_frame(peer, "its data are of message " + std::to_string(head.id) + ", which was not requested");
  }
  if (message->second.size != head.size) {
    refuse_frame(peer, "it brings " + std::to_string(head.size) + " bytes of message " + std::to_string(head.id) +
                           ", which has " + std::to_string(message->second.size));
  }
  on_data_(peer, head.size, *message->second.receive);
  at(peer).in.erase(message);
}

inline void Messenger::withdraw_arrived(int32_t peer, uint64_t id) {
  mailbox_.withdraw(peer, id);
  std::optional<Receive> receive;
  bool is_cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    const auto message = at(peer).in.find(id);
    if (message == at(peer).in.end()) return;
    receive = std::move(message->second.receive);
    is_cancelled = message->second.is_cancelled;
    at(peer).in.erase(message);
  }
  if (!receive) return;
  is_cancelled ? receive->received->fail(cancelled_) : mailbox_.restore(std::move(*receive));
}

// No effect once all frames of the message have been given out.
inline void Messenger::cancel_send(int32_t peer, uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (at(peer).sending.cancel(id, cancelled_)) on_ready_(peer);
}

// A waiting receive fails. If its message is in transit, the next receive gets the message with the data so far;
// out-of-band, the receive fails only if the message is withdrawn.
inline void Messenger::cancel_recv(const Completion* which) {
  if (mailbox_.cancel(which)) return;
  std::optional<Receive> receive;
  int32_t peer = 0;
  uint64_t id = 0, tag = 0, size = 0;
  {
    const std::lock_guard lock(mutex_);
    for (; peer < static_cast<int32_t>(peers_.size()) && !receive; ++peer) {
      for (auto& [its_id, m] : at(peer).in) {
        if (!m.receive || m.receive->received.get() != which) continue;
        if (on_data_) {
          m.is_cancelled = true;
          return;
        }
        id = its_id, tag = m.tag, size = m.size;
        m.stash.resize(std::max<uint64_t>(m.size, 1));
        if (m.offset > 0) std::memcpy(m.stash.data(), m.receive->data, m.offset);
        receive = std::move(m.receive);
        m.receive.reset();
        break;
      }
    }
    --peer;
  }
  if (!receive) return;
  receive->received->fail(cancelled_);
  mailbox_.announce_again(peer, tag, size, id, [this, peer, id](Receive* next) { return fetch(peer, id, next); });
}

}  // namespace backplane::sdk

#include "messenger_end_impl.hpp"
