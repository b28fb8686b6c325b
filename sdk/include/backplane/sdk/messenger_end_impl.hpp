// SPDX-License-Identifier: Apache-2.0
//
// The definitions of messenger.hpp: lost peers, abort and flush.
#pragma once

#include "messenger.hpp"

namespace backplane::sdk {

// Under the lock.
inline void Messenger::Peer::fail_borrowed(const Failure& why) {
  for (const auto& each : borrowed) {
    if (const Buffer buffer = each.lock()) buffer->fail(why);
  }
}

inline void Messenger::Peer::clear() noexcept {
  frames.clear();
  out.clear();
  ready_ids.clear();
  in.clear();
  borrowed.clear();
  unconfirmed.reset();
  not_taken.clear();
  is_sending = false;
}

inline void Messenger::lost(int32_t peer, const Failure& why, bool borrowed_too) {
  std::vector<std::shared_ptr<Completion>> failing;
  {
    const std::lock_guard lock(mutex_);
    Peer& p = at(peer);
    if (p.lost) return;
    p.lost.emplace(why);
    for (auto& [id, m] : p.out) m.buffer->fail(why);
    for (const Frame& frame : p.frames) {
      if (frame.buffer) frame.buffer->fail(why);
    }
    // Only the transport knows whether the peer received the last Bytes before it was lost.
    for (const Buffer& buffer : p.not_taken) buffer->fail(why);
    if (borrowed_too) p.fail_borrowed(why);
    for (auto& [id, m] : p.in) {
      if (m.receive) failing.push_back(m.receive->received);
    }
    std::erase_if(p.in, [](const auto& entry) {
      const Incoming& m = entry.second;
      return m.receive || m.stash.empty() || m.offset < m.size;  // the others have arrived whole
    });
    p.out.clear();
    p.ready_ids.clear();
    p.frames.clear();
    p.not_taken.clear();
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
  mailbox_.close(*first, *first);  // also by a second caller: the first may not have closed it yet
}

// Under the lock.
inline void Messenger::fail_all(const Failure& why) {
  for (Peer& p : peers_) {
    for (auto& [id, m] : p.out) m.buffer->fail(why);
    for (const Frame& frame : p.frames) {
      if (frame.buffer) frame.buffer->fail(why);
    }
    if (p.unconfirmed) p.unconfirmed->fail(why);
    for (const Buffer& buffer : p.not_taken) buffer->fail(why);
    p.fail_borrowed(why);
    for (auto& [id, m] : p.in) {
      if (m.receive) m.receive->received->fail(why);
    }
    p.clear();
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
                     [](const Peer& p) { return p.is_sending || !p.frames.empty() || !p.ready_ids.empty(); });
}

inline bool Messenger::flush(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return !busy(); });
}

}  // namespace backplane::sdk
