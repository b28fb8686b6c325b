// SPDX-License-Identifier: Apache-2.0
//
// The definitions of messenger.hpp: lost peers, abort and flush.
#pragma once

#include "messenger.hpp"

namespace backplane::sdk {

inline void Messenger::lost(int32_t peer, const Failure& why, bool borrowed_too) {
  std::vector<std::shared_ptr<Completion>> failing;
  {
    const std::lock_guard lock(mutex_);
    Peer& p = at(peer);
    if (p.lost) return;
    p.lost.emplace(why);
    p.sending.lose(why, borrowed_too);
    for (auto& [id, m] : p.in) {
      if (m.receive) failing.push_back(m.receive->received);
    }
    std::erase_if(p.in, [](const auto& entry) {
      const Incoming& m = entry.second;
      return m.receive || m.stash.empty() || m.offset < m.size;  // the others have arrived whole
    });
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
      for (Peer& p : peers_) {
        p.sending.abort(why);
        for (auto& [id, m] : p.in) {
          if (m.receive) m.receive->received->fail(why);
        }
        p.in.clear();
      }
      changed_.notify_all();
      for (size_t peer = 0; peer < peers_.size(); ++peer) on_ready_(static_cast<int32_t>(peer));
    }
    first = aborted_;
  }
  mailbox_.close(*first, *first);  // also by a second caller: the first may not have closed it yet
}

inline bool Messenger::aborted() {
  const std::lock_guard lock(mutex_);
  return aborted_.has_value();
}

inline bool Messenger::flush(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] {
    return std::none_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.sending.is_busy(); });
  });
}

}  // namespace backplane::sdk
