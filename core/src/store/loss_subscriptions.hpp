// SPDX-License-Identifier: Apache-2.0
//
// The callbacks of a client that are notified of losses. Thread-safe; the callbacks run with the lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "liveness/membership.hpp"

namespace backplane::core {

class LossSubscriptions {
 public:
  using Notify = std::function<void(const Loss&)>;

  uint64_t add(const std::string& scope, Notify notify) {
    const std::lock_guard lock(mutex_);
    subscriptions_.emplace(++last_id_, Subscription{scope, std::move(notify), {}});
    return last_id_;
  }
  // Waits for a running callback. Must not be called from one.
  void remove(uint64_t id) {
    const std::lock_guard lock(mutex_);
    subscriptions_.erase(id);
  }
  // Notifies the subscriptions of the scope.
  void notify(const std::string& scope, const Loss& loss) {
    const std::lock_guard lock(mutex_);
    for (auto& [id, subscription] : subscriptions_) {
      if (subscription.scope == scope && subscription.reported.insert(loss.rank).second) subscription.notify(loss);
    }
  }
  void notify_all(const Loss& loss) {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, subscription] : subscriptions_) subscription.notify(loss);
  }

 private:
  struct Subscription {
    std::string scope;
    Notify notify;
    std::set<int32_t> reported;  // the server repeats losses when another thread enrolls in the same scope
  };

  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t last_id_ = 0;
  std::map<uint64_t, Subscription> subscriptions_;
};

}  // namespace backplane::core
