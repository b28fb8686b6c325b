// SPDX-License-Identifier: Apache-2.0
//
// A host table over a store in memory, for tests of the SDK.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "backplane/abi/abi.h"
#include "backplane/abi/ext/network.h"

namespace backplane::sdk {

class MemoryHost {
 public:
  MemoryHost() {
    table_.struct_size = sizeof table_;
    table_.ctx = this;
    table_.log = [](void*, uint32_t, const char*) {};
    table_.abort_requested = [](void* ctx) -> int32_t { return self(ctx).aborting_ ? 1 : 0; };
    table_.store_set = [](void* ctx, const char* key, const void* value, uint64_t size, bp_error*) -> int32_t {
      const std::lock_guard lock(self(ctx).mutex_);
      self(ctx).values_[key].assign(static_cast<const char*>(value), size);
      self(ctx).changed_.notify_all();
      return BP_OK;
    };
    table_.store_get = get;
    table_.extension = [](void* ctx, const char* id) -> const void* {
      return std::string_view(id) == BP_EXT_NETWORK && self(ctx).has_network_ ? &self(ctx).network_ : nullptr;
    };
  }
  // The address that BP_EXT_NETWORK reports, which is not offered otherwise. Must outlive this object.
  void reach_store_from(const char* address) {
    network_.store_address = address;
    has_network_ = true;
  }

  const bp_host* table() const { return &table_; }
  void abort() {
    const std::lock_guard lock(mutex_);
    aborting_ = true;
    changed_.notify_all();
  }
  // Waits for a value, at most a minute; then returns "".
  std::string value(const std::string& key) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::minutes(1), [this, &key] { return values_.contains(key); });
    return values_[key];
  }

 private:
  static MemoryHost& self(void* ctx) { return *static_cast<MemoryHost*>(ctx); }

  static int32_t get(void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size, int64_t timeout_ns,
                     bp_error* err) {
    MemoryHost& host = self(ctx);
    std::unique_lock lock(host.mutex_);
    const auto limit = std::chrono::nanoseconds(timeout_ns < 0 ? INT64_C(60'000'000'000) : timeout_ns);
    host.changed_.wait_for(lock, limit, [&host, key] { return host.values_.contains(key) || host.aborting_; });
    const auto found = host.values_.find(key);
    if (found == host.values_.end()) {
      return bp_error_set(err, host.aborting_ ? BP_CANCELLED : BP_TIMEOUT, 0, -1, "no such key");
    }
    *size = found->second.size();
    if (*size > capacity) return BP_RESOURCE;
    std::memcpy(buffer, found->second.data(), *size);
    return BP_OK;
  }

  bp_host table_{};
  bp_network_api network_{sizeof(bp_network_api), 0, ""};
  bool has_network_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::atomic<bool> aborting_ = false;
};

// A bp_init for one rank.
inline bp_init init_of(const MemoryHost& host, int32_t rank, int32_t world_size, int64_t timeout_ns) {
  static const int32_t ranks[64] = {};
  bp_init init{};
  init.struct_size = sizeof init;
  init.rank = rank;
  init.world_size = world_size;
  init.device = -1;
  init.name = "test";
  init.host = host.table();
  init.timeout_ns = timeout_ns;
  init.global_ranks = ranks;
  return init;
}

}  // namespace backplane::sdk
