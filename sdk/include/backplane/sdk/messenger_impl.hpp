// SPDX-License-Identifier: Apache-2.0
//
// The definitions of messenger.hpp.
#pragma once

#include <new>

#include "messenger.hpp"

namespace backplane::sdk {
namespace detail {
enum FrameKind : uint32_t { kEager = 1, kAnnounce, kReady, kData, kWithdraw, kCredit };
}  // namespace detail

inline Messenger::Bytes Messenger::frame(uint32_t kind, uint64_t tag, uint64_t id, uint64_t size,
                                         std::span<const std::byte> payload) {
  const Head head{kind, static_cast<uint32_t>(payload.size()), tag, id, size};
  Bytes bytes(kHeadSize + payload.size());
  std::memcpy(bytes.data(), &head, kHeadSize);
  if (!payload.empty()) std::memcpy(bytes.data() + kHeadSize, payload.data(), payload.size());
  return bytes;
}

inline void Messenger::nonsense(int32_t peer) {
  throw Failure(BP_PEER_LOST, "rank " + std::to_string(peer) + " sent a frame that makes no sense", peer);
}

inline size_t Messenger::frame_size(const std::byte* bytes) {
  Head head{};
  std::memcpy(&head, bytes, kHeadSize);
  const bool is_known = head.kind >= detail::kEager && head.kind <= detail::kCredit;
  const bool holds_data = head.kind == detail::kEager || head.kind == detail::kData;
  if (!is_known || head.payload > (holds_data ? kPiece : 0)) {
    throw Failure(BP_PEER_LOST, "a frame that makes no sense came; do all ranks run the same version of this backend?");
  }
  return kHeadSize + head.payload;
}

inline std::unique_ptr<Work> Messenger::submit(const bp_op& op) {
  const uint64_t width = bp_dtype_size(op.dtype);
  if (op.kind == BP_SEND) return send(op.peer, op.tag, op.input.data, op.input.count * width);
  if (op.kind == BP_RECV) {
    return recv({op.peer, op.tag, op.output.data, op.output.count * width, op.result, nullptr, 0, false}, op.message);
  }
  throw Failure(BP_UNSUPPORTED, "this backend sends and receives; the core does the rest over it");
}

// `message`: the one that was probed, or null.
inline std::unique_ptr<Work> Messenger::recv(Receive receive, bp_message* message) {
  std::shared_ptr<Completion> received;
  std::unique_ptr<Work> work;
  // Before it is posted: whoever is told that there is no memory for it frees its buffer.
  try {
    received = std::make_shared<Completion>();
    work = std::make_unique<CompletionWork>(received, [this, which = received.get()] { cancel_recv(which); });
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

inline std::unique_ptr<Work> Messenger::send(int32_t peer, uint64_t tag, const void* data, uint64_t size) {
  if (peer == rank_) {
    std::shared_ptr<Completion> sent = mailbox_.put(rank_, tag, data, size);
    if (!sent || sent->wait(0)) return nullptr;
    try {
      return std::make_unique<CompletionWork>(sent, [this, which = sent.get()] { mailbox_.cancel(which); });
    } catch (const std::bad_alloc&) {
      mailbox_.cancel(sent.get());
      throw;
    }
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  Peer& p = at(peer);
  if (aborted_) throw Failure(*aborted_);
  if (p.lost) throw Failure(*p.lost);
  if (size <= kEagerLimit && p.waiting_there + size + kOverhead <= kWindow) {
    queue(peer, frame(detail::kEager, tag, 0, size, {bytes, size}));
    p.waiting_there += size + kOverhead;
    return nullptr;
  }
  const uint64_t id = ++next_id_;
  auto sent = std::make_shared<Completion>();
  auto work = std::make_unique<CompletionWork>(sent, [this, peer, id] { cancel_send(peer, id); });
  p.out.emplace(id, Outgoing{bytes, size, 0, sent});
  queue(peer, frame(detail::kAnnounce, tag, id, size));
  return work;
}

// Under the lock.
inline void Messenger::queue(int32_t peer, Bytes bytes) {
  if (aborted_ || at(peer).lost) return;
  at(peer).frames.push_back(std::move(bytes));
  on_ready_(peer);
}

inline bool Messenger::next(int32_t peer, Bytes& frame) {
  const std::lock_guard lock(mutex_);
  Peer& p = at(peer);
  p.carrying = false;
  if (p.leaving) p.leaving->finish();
  p.leaving.reset();
  p.carrying = !aborted_ && !p.lost && next_frame(p, frame);
  if (!p.carrying) changed_.notify_all();
  return p.carrying;
}

inline void Messenger::not_carried(int32_t peer) {
  const std::lock_guard lock(mutex_);
  Peer& p = at(peer);
  p.carrying = false;
  if (p.leaving && p.lost) p.leaving->fail(*p.lost);
  if (p.leaving && !p.lost) p.stuck.push_back(p.leaving);
  p.leaving.reset();
  changed_.notify_all();
}

inline bool Messenger::next_frame(Peer& p, Bytes& out) {
  if (!p.frames.empty()) {
    out = std::move(p.frames.front());
    p.frames.pop_front();
  } else if (!p.wanted.empty()) {
    next_piece(p, out);
  } else if (p.owed >= kWindow / 4) {
    out = frame(detail::kCredit, 0, 0, std::exchange(p.owed, 0));
  } else {
    return false;
  }
  return true;
}

inline void Messenger::next_piece(Peer& p, Bytes& out) {
  const auto message = p.out.find(p.wanted.front());
  Outgoing& m = message->second;
  const uint64_t size = std::min(m.size - m.offset, kPiece);
  out = frame(detail::kData, 0, message->first, m.size, {m.data + m.offset, size});
  m.offset += size;
  if (m.offset < m.size) return;
  p.leaving = std::move(m.sent);
  p.out.erase(message);
  p.wanted.pop_front();
}

inline void Messenger::arrived(int32_t peer, std::span<const std::byte> bytes) {
  Head head{};
  if (bytes.size() < kHeadSize || bytes.size() != frame_size(bytes.data())) nonsense(peer);
  std::memcpy(&head, bytes.data(), kHeadSize);
  const auto data = bytes.subspan(kHeadSize);
  switch (head.kind) {
    case detail::kEager:
      mailbox_.deliver(peer, head.tag, Bytes(data.begin(), data.end()),
                       [this, peer, size = data.size()] { taken(peer, size + kOverhead); });
      return;
    case detail::kAnnounce: {
      {
        const std::lock_guard lock(mutex_);
        if (head.size > INT64_MAX || !at(peer).in.emplace(head.id, Incoming{head.tag, head.size, 0, {}, {}}).second) {
          nonsense(peer);
        }
      }
      mailbox_.announce(peer, head.tag, head.size, head.id,
                        [this, peer, id = head.id](Receive* receive) { return fetch(peer, id, receive); });
      return;
    }
    case detail::kReady: {
      const std::lock_guard lock(mutex_);
      Peer& p = at(peer);
      const auto message = p.out.find(head.id);
      if (message == p.out.end()) return;  // it was withdrawn meanwhile
      if (head.size != 0) {                // received, in the sense that it was too long
        message->second.sent->finish();
        p.out.erase(message);
      } else if (std::find(p.wanted.begin(), p.wanted.end(), head.id) == p.wanted.end()) {
        p.wanted.push_back(head.id);
        on_ready_(peer);
      }
      return;
    }
    case detail::kData:
      return came(peer, head.id, data);
    case detail::kWithdraw:
      return withdrawn(peer, head.id);
    default: {
      const std::lock_guard lock(mutex_);
      at(peer).waiting_there -= std::min(at(peer).waiting_there, head.size);
    }
  }
}

// An eager message of the peer was received. The mailbox's lock is held.
inline void Messenger::taken(int32_t peer, uint64_t size) {
  const std::lock_guard lock(mutex_);
  at(peer).owed += size;
  if (at(peer).owed >= kWindow / 4) on_ready_(peer);
}

// A receive has taken an announced message, or found it too long. The mailbox's lock is held.
inline bool Messenger::fetch(int32_t peer, uint64_t id, Receive* receive) {
  const std::lock_guard lock(mutex_);
  const auto message = at(peer).in.find(id);
  if (message == at(peer).in.end()) return false;  // withdrawn, lost or aborted at this very moment
  Incoming& m = message->second;
  const bool has_begun = !m.stash.empty();
  if (receive == nullptr) {
    if (!has_begun) queue(peer, frame(detail::kReady, 0, id, 1));
    at(peer).in.erase(message);  // what still comes of it is dropped
    return true;
  }
  if (has_begun) std::memcpy(receive->data, m.stash.data(), m.offset);
  if (has_begun && m.offset == m.size) {
    receive->received->finish();
    at(peer).in.erase(message);
    return true;
  }
  m.receive = *receive;
  m.stash = {};
  if (!has_begun) queue(peer, frame(detail::kReady, 0, id, 0));
  return true;
}

inline void Messenger::came(int32_t peer, uint64_t id, std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  const auto message = at(peer).in.find(id);
  if (message == at(peer).in.end()) return;
  Incoming& m = message->second;
  if ((!m.receive && m.stash.empty()) || data.size() > m.size - m.offset) nonsense(peer);
  std::byte* to = m.receive ? static_cast<std::byte*>(m.receive->data) : m.stash.data();
  if (!data.empty()) std::memcpy(to + m.offset, data.data(), data.size());
  m.offset += data.size();
  if (m.offset < m.size || !m.receive) return;
  m.receive->received->finish();
  at(peer).in.erase(message);
}

inline void Messenger::withdrawn(int32_t peer, uint64_t id) {
  mailbox_.withdraw(peer, id);
  std::optional<Receive> receive;
  {
    const std::lock_guard lock(mutex_);
    const auto message = at(peer).in.find(id);
    if (message == at(peer).in.end()) return;
    receive = std::move(message->second.receive);
    at(peer).in.erase(message);
  }
  if (receive) mailbox_.restore(std::move(*receive));
}

inline void Messenger::cancel_send(int32_t peer, uint64_t id) {
  const std::lock_guard lock(mutex_);
  Peer& p = at(peer);
  const auto message = p.out.find(id);
  if (message == p.out.end()) return;  // done, or its last piece is on the way
  message->second.sent->fail(Failure(BP_CANCELLED, "cancelled by this rank"));
  p.out.erase(message);
  std::erase(p.wanted, id);
  queue(peer, frame(detail::kWithdraw, 0, id, 0));
}

// A receive that waits is failed. One whose message is on its way leaves it, with what has come, to the next receive.
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
  receive->received->fail(Failure(BP_CANCELLED, "cancelled by this rank"));
  mailbox_.announce_again(peer, tag, size, id, [this, peer, id](Receive* next) { return fetch(peer, id, next); });
}

inline void Messenger::lost(int32_t peer, const Failure& why) {
  std::vector<std::shared_ptr<Completion>> failing;
  {
    const std::lock_guard lock(mutex_);
    Peer& p = at(peer);
    if (p.lost) return;
    p.lost.emplace(why);
    for (auto& [id, m] : p.out) failing.push_back(m.sent);
    // While the transport has a frame in hand, it alone knows whether the peer got that before it left.
    failing.insert(failing.end(), p.stuck.begin(), p.stuck.end());
    for (auto& [id, m] : p.in) {
      if (m.receive) failing.push_back(m.receive->received);
    }
    std::erase_if(p.in, [](const auto& entry) {
      const Incoming& m = entry.second;
      return m.receive || m.stash.empty() || m.offset < m.size;  // what is left has arrived whole
    });
    p.out.clear();
    p.wanted.clear();
    p.frames.clear();
    changed_.notify_all();
  }
  for (const auto& completion : failing) completion->fail(why);
  mailbox_.drop_peer(peer, why, peers_.size() - 1, [this, peer](uint64_t id) {
    const std::lock_guard lock(mutex_);
    return at(peer).in.contains(id);
  });
}

inline void Messenger::abort(const Failure& why) {
  std::optional<Failure> first;
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_) {
      aborted_.emplace(why);
      fail_all(why);
    }
    first = aborted_;
  }
  mailbox_.close(*first, *first);  // also by a second caller, whose operations may come before the first is here
}

// Under the lock.
inline void Messenger::fail_all(const Failure& why) {
  for (Peer& p : peers_) {
    for (auto& [id, m] : p.out) m.sent->fail(why);
    if (p.leaving) p.leaving->fail(why);
    for (const auto& completion : p.stuck) completion->fail(why);
    for (auto& [id, m] : p.in) {
      if (m.receive) m.receive->received->fail(why);
    }
    p = Peer{};
  }
  changed_.notify_all();
  for (size_t peer = 0; peer < peers_.size(); ++peer) on_ready_(static_cast<int32_t>(peer));
}

inline bool Messenger::aborted() {
  const std::lock_guard lock(mutex_);
  return aborted_.has_value();
}

inline bool Messenger::busy() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& p) { return p.carrying || !p.frames.empty() || !p.wanted.empty(); });
}

inline bool Messenger::flush(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return !busy(); });
}

}  // namespace backplane::sdk
