// SPDX-License-Identifier: Apache-2.0
//
// The host table (abi/host.h) of one agent.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backplane/abi/ext/network.h"
#include "backplane/abi/host.h"
#include "error.hpp"
#include "store/store.hpp"

namespace backplane::core {

class Host {
 public:
  // `name` prefixes the plugin's log lines. Without a store, its store functions return BP_UNSUPPORTED. The constructor
  // reads from the environment whether the job has a secret.
  explicit Host(std::string name, std::shared_ptr<Store> store = nullptr);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const bp_host* table() const { return &table_; }
  // From now on abort_requested returns 1, and blocked store calls end with BP_CANCELLED. An interruption of the store
  // has the same effect.
  void request_abort(const std::string& why);
  // Called for each failure that the plugin reports. Must not block: a lock is held. Without a listener, failures are
  // logged.
  using FailureListener = std::function<void(const Error& why)>;
  void on_failure(FailureListener listener);
  // Offers an extension. `table` must outlive this object. Call before the plugin gets the host.
  void offer(const char* id, const void* table) { offered_[id] = table; }
  // Without a store, as in a probe: the texts that the plugin logged at BP_LOG_INFO.
  std::string remarks() const;
  bool abort_requested() const {
    return aborting_.load(std::memory_order_acquire) || (store_ != nullptr && store_->interrupted());
  }

 private:
  friend struct HostCalls;

  const std::string name_;
  const std::shared_ptr<Store> store_;
  const bool secure_;
  const std::string store_address_;
  const bp_network_api network_;
  std::map<std::string, const void*, std::less<>> offered_;
  std::atomic<bool> aborting_ = false;
  std::mutex listener_mutex_;
  FailureListener listener_;
  mutable std::mutex remarks_mutex_;
  std::string remarks_;  // separated by "; "
  const bp_host table_;
};

}  // namespace backplane::core
