// SPDX-License-Identifier: Apache-2.0
//
// The host table (abi/host.h) that one agent sees.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backplane/abi/host.h"
#include "error.hpp"
#include "store/store.hpp"

namespace backplane::core {

class Host {
 public:
  // `name` stands before the plugin's log lines. Without a store its store functions answer BP_UNSUPPORTED. Whether the
  // job has a secret is what the environment says now.
  explicit Host(std::string name, std::shared_ptr<Store> store = nullptr);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const bp_host* table() const { return &table_; }
  // From now on abort_requested says 1, and blocked store calls end with BP_CANCELLED. It says so, too, once somebody
  // else has interrupted the store.
  void request_abort(const std::string& why);
  // Called with each failure that the plugin reports, under a lock: must not block. Without one they are logged.
  using FailureListener = std::function<void(const Error& why)>;
  void on_failure(FailureListener listener);
  // Answers this extension with `table`, which outlives this object. Before the plugin sees the host.
  void offer(const char* id, const void* table) { offered_[id] = table; }
  // Without a store, as in a probe: what the plugin has logged at BP_LOG_INFO by now.
  std::string remarks() const;
  bool abort_requested() const {
    return aborting_.load(std::memory_order_acquire) || (store_ != nullptr && store_->interrupted());
  }

 private:
  friend struct HostCalls;

  const std::string name_;
  const std::shared_ptr<Store> store_;
  const bool secure_;
  std::map<std::string, const void*, std::less<>> offered_;
  std::atomic<bool> aborting_ = false;
  std::mutex listener_mutex_;
  FailureListener listener_;
  mutable std::mutex remarks_mutex_;
  std::string remarks_;  // parted by "; "
  const bp_host table_;
};

}  // namespace backplane::core
