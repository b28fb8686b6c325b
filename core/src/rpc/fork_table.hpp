// SPDX-License-Identifier: Apache-2.0
//
// The forks (wire.hpp) that this worker holds, and those in its replies. Messages may get lost: a fork that its sender
// has abandoned is refused if its message arrives later, so the owner can drop it at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "rpc/recent_set.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

class ForkTable {
 public:
  // Adds the forks of a received message. False if their sender has abandoned them; then none is added.
  bool hold(const std::vector<Fork>& forks) {
    const std::lock_guard lock(mutex_);
    for (const Fork& each : forks) {
      if (abandoned_.contains(each.id)) return false;
    }
    for (const Fork& each : forks) held_.insert(each.id);
    return true;
  }
  void release(const Id& fork) {
    const std::lock_guard lock(mutex_);
    held_.erase(fork);
  }
  // The sender abandons these. Returns those that are not held here; hold() refuses them from now on.
  std::vector<Fork> abandon(const std::vector<Fork>& forks) {
    std::vector<Fork> missing;
    const std::lock_guard lock(mutex_);
    for (const Fork& each : forks) {
      if (held_.contains(each.id)) continue;
      abandoned_.add(each.id);
      missing.push_back(each);
    }
    return missing;
  }

  // Keeps the forks of a reply, the last kMaxReplies of them: the receipt of a reply is not confirmed.
  void add_reply(int32_t to, uint64_t call, const std::vector<Fork>& forks) {
    if (forks.empty()) return;
    const std::lock_guard lock(mutex_);
    replies_[{to, call}] = forks;
    reply_order_.emplace_back(to, call);
    if (reply_order_.size() <= kMaxReplies) return;
    replies_.erase(reply_order_.front());
    reply_order_.pop_front();
  }
  // Removes and returns them: the reply was not delivered, or its receiver no longer waits for it.
  std::vector<Fork> take_reply(int32_t to, uint64_t call) {
    const std::lock_guard lock(mutex_);
    const auto found = replies_.find({to, call});
    if (found == replies_.end()) return {};
    std::vector<Fork> forks = std::move(found->second);
    replies_.erase(found);
    return forks;
  }

 private:
  static constexpr size_t kMaxAbandoned = 1 << 16;
  static constexpr size_t kMaxReplies = 4096;

  std::mutex mutex_;
  std::set<Id> held_;
  RecentSet<Id, kMaxAbandoned> abandoned_;
  std::map<std::pair<int32_t, uint64_t>, std::vector<Fork>> replies_;
  std::deque<std::pair<int32_t, uint64_t>> reply_order_;
};

}  // namespace backplane::core::rpc
