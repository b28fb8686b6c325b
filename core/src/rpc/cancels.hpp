// SPDX-License-Identifier: Apache-2.0
//
// The words that nobody waits for a call, or a value, any more. They are not answered, and need not come in order: one
// that overtakes its call is kept for it, and one that may have been lost with a connection is sent again. Twice does
// no harm.
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
#include "rpc/recent.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

class Cancels {
 public:
  using Clock = Deadline::Clock;
  static constexpr int kMostTimes = 3;

  // A word of `from` about a call that does not run here: it has ended, or is still on its way.
  void keep(int32_t from, uint64_t call) {
    const std::lock_guard lock(mutex_);
    early_[from].add(call);
  }
  // A call has come: has a word been kept for it? Forgets that.
  bool take(int32_t from, uint64_t call) {
    const std::lock_guard lock(mutex_);
    const auto found = early_.find(from);
    return found != early_.end() && found->second.remove(call);
  }

  struct Told {
    uint64_t call = 0;
    int64_t timeout_ns = 0;                      // of the word
    Id value = {};                               // that was to be fetched, if one was
    int left = std::numeric_limits<int>::max();  // how often it may be told again
  };

  // `to` has been told of this call, or is about to be.
  void note(int32_t to, const Told& word) {
    const std::lock_guard lock(mutex_);
    std::deque<Told>& last = told_[to].last;
    last.push_back(word);
    if (last.size() > kMostTold) last.pop_front();
  }
  // Of which it is to be told once more, for what it was told of late may have been lost. None if that was asked a few
  // times within a second: telling opens a connection, and while the other one is away that breaks at once, too. Once
  // would not do: one that broke may be followed by another, which took the words.
  std::vector<Told> again(int32_t to, Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    const auto found = told_.find(to);
    if (found == told_.end()) return {};
    auto& [last, since, rounds] = found->second;
    if (now - since >= kSpan) {
      since = now;
      rounds = 0;
    }
    if (++rounds > kMostTimes) return {};
    std::vector<Told> all(last.begin(), last.end());
    for (Told& each : last) --each.left;
    std::erase_if(last, [](const Told& each) { return each.left == 0; });
    return all;
  }
  // There is nobody to tell any more, nor anybody who calls.
  void forget(int32_t peer) {
    const std::lock_guard lock(mutex_);
    early_.erase(peer);
    told_.erase(peer);
  }

 private:
  static constexpr size_t kMostKept = 512;  // of each peer
  static constexpr size_t kMostTold = 256;
  static constexpr std::chrono::seconds kSpan{1};

  struct Peer {
    std::deque<Told> last;
    Clock::time_point since;  // the rounds are counted
    int rounds = 0;
  };

  mutable std::mutex mutex_;
  std::map<int32_t, Recent<uint64_t, kMostKept>> early_;
  std::map<int32_t, Peer> told_;
};

}  // namespace backplane::core::rpc
