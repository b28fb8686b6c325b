// SPDX-License-Identifier: Apache-2.0
//
// Cancellations of requests. They are not confirmed, arrive in any order, and may be delivered twice without harm.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "deadline.hpp"
#include "rpc/recent_set.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

// Received cancellations whose call does not run here: it has ended, or has not arrived yet.
class EarlyCancels {
 public:
  void add(int32_t from, uint64_t call) {
    const std::lock_guard lock(mutex_);
    calls_[from].add(call);
  }
  // A call arrives. True, and removed, if it was cancelled before.
  bool take(int32_t from, uint64_t call) {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(from);
    return found != calls_.end() && found->second.remove(call);
  }
  void forget(int32_t peer) {
    const std::lock_guard lock(mutex_);
    calls_.erase(peer);
  }

 private:
  static constexpr size_t kMaxPerPeer = 512;

  std::mutex mutex_;
  std::map<int32_t, RecentSet<uint64_t, kMaxPerPeer>> calls_;
};

// The last cancellations sent to each peer, which are sent again when they may have been lost with a connection.
class SentCancels {
 public:
  using Clock = Deadline::Clock;
  static constexpr int kMaxRounds = 3;

  struct Cancel {
    uint64_t call = 0;
    int64_t timeout_ns = 0;  // of the message
    Id value = {};           // of a cancelled fetch
    int resends_left = std::numeric_limits<int>::max();
  };

  void add(int32_t to, const Cancel& cancel) {
    const std::lock_guard lock(mutex_);
    std::deque<Cancel>& last = peers_[to].last;
    last.push_back(cancel);
    if (last.size() > kMaxPerPeer) last.pop_front();
  }
  // Those to send again after a connection broke. None after kMaxRounds rounds within a second: a send opens a
  // connection, which breaks at once while the peer is unreachable. One round is not enough, because the next
  // connection may break as well.
  std::vector<Cancel> take_resends(int32_t to, Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    const auto found = peers_.find(to);
    if (found == peers_.end()) return {};
    auto& [last, since, rounds] = found->second;
    if (now - since >= kSpan) {
      since = now;
      rounds = 0;
    }
    if (++rounds > kMaxRounds) return {};
    std::vector<Cancel> all(last.begin(), last.end());
    for (Cancel& each : last) --each.resends_left;
    std::erase_if(last, [](const Cancel& each) { return each.resends_left == 0; });
    return all;
  }
  void forget(int32_t peer) {
    const std::lock_guard lock(mutex_);
    peers_.erase(peer);
  }

 private:
  static constexpr size_t kMaxPerPeer = 256;
  static constexpr std::chrono::seconds kSpan{1};

  struct Peer {
    std::deque<Cancel> last;
    Clock::time_point since;  // begin of the span in which rounds are counted
    int rounds = 0;
  };

  std::mutex mutex_;
  std::map<int32_t, Peer> peers_;
};

}  // namespace backplane::core::rpc
