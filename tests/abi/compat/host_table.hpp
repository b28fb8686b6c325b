// SPDX-License-Identifier: Apache-2.0
//
// The host table of the compatibility tests: a store in memory that is shared by threads, and a recorded log.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "backplane/abi/abi.h"
#include "guarded.hpp"

namespace compat {

struct Blackboard {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::string log;  // all lines of all ranks
};

// One rank's table. Without a blackboard, as for probe, it has no store.
class HostTable {
 public:
  explicit HostTable(Blackboard* blackboard, std::string& log) : blackboard_(blackboard), log_(log) {
    table_->abi_minor = BP_ABI_MINOR + (tail_size > 0 ? 1 : 0);
    table_->ctx = this;
    table_->log = [](void* ctx, uint32_t, const char* text) {
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      self(ctx).log_ += std::string(text) + "\n";
    };
    table_->abort_requested = [](void* ctx) { return int32_t{self(ctx).ending_}; };
    table_->store_set = [](void* ctx, const char* key, const void* value, uint64_t size, bp_error* err) {
      return self(ctx).change(err, [&](auto& values) { values[key] = std::string(bytes(value), size); });
    };
    table_->store_get = get;
    table_->store_add = [](void* ctx, const char* key, int64_t delta, int64_t* sum, bp_error* err) {
      return self(ctx).change(err, [&](auto& values) {
        std::string& value = values[key];
        *sum = (value.empty() ? 0 : std::stoll(value)) + delta;
        value = std::to_string(*sum);
      });
    };
    table_->store_wait = [](void* ctx, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err) {
      int32_t status = BP_OK;
      for (uint64_t i = 0; i < count && status == BP_OK; ++i) status = self(ctx).await(keys[i], timeout_ns, err);
      return status;
    };
    table_->store_compare_set = compare_set;
    table_->store_delete = [](void* ctx, const char* key, int32_t* existed, bp_error* err) {
      return self(ctx).change(err, [&](auto& values) {
        const auto erased = static_cast<int32_t>(values.erase(key));
        if (existed != nullptr) *existed = erased;
      });
    };
    table_->extension = [](void*, const char*) -> const void* { return nullptr; };
    table_->report_failure = [](void*, const bp_error*) {};
#if BP_ABI_MINOR >= 1
    table_->now_ns = [](void*) { return kNow; };
#endif
  }

  static constexpr int64_t kNow = 4711;

  const bp_host* get() const { return table_.get(); }
  void end() {
    ending_ = true;
    if (blackboard_ != nullptr) blackboard_->changed.notify_all();
  }

 private:
  static HostTable& self(void* ctx) { return *static_cast<HostTable*>(ctx); }
  static const char* bytes(const void* value) { return value == nullptr ? "" : static_cast<const char*>(value); }

  template <typename Change>
  int32_t change(bp_error* err, Change&& apply) {
    if (blackboard_ == nullptr) return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "there is no store while probing");
    const std::lock_guard lock(blackboard_->mutex);
    apply(blackboard_->values);
    blackboard_->changed.notify_all();
    return BP_OK;
  }

  int32_t await(const char* key, int64_t timeout_ns, bp_error* err) {
    if (blackboard_ == nullptr) return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "there is no store while probing");
    // Without a timeout the test's own limit holds.
    const auto limit =
        timeout_ns < 0 ? std::chrono::nanoseconds(std::chrono::minutes(2)) : std::chrono::nanoseconds(timeout_ns);
    std::unique_lock lock(blackboard_->mutex);
    const bool there = blackboard_->changed.wait_for(
        lock, limit, [&] { return ending_ || blackboard_->values.find(key) != blackboard_->values.end(); });
    if (ending_) return bp_error_set(err, BP_CANCELLED, 0, -1, "the group ends");
    return there ? BP_OK : bp_error_set(err, BP_TIMEOUT, 0, -1, "no such key in time");
  }

  static int32_t copy_out(const std::string& value, void* buffer, uint64_t capacity, uint64_t* size, bp_error* err) {
    *size = value.size();
    if (value.size() > capacity) return bp_error_set(err, BP_RESOURCE, 0, -1, "the buffer is too small");
    if (!value.empty()) std::memcpy(buffer, value.data(), value.size());
    return BP_OK;
  }

  static int32_t get(void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size, int64_t timeout_ns,
                     bp_error* err) {
    const int32_t status = self(ctx).await(key, timeout_ns, err);
    if (status != BP_OK) return status;
    const std::lock_guard lock(self(ctx).blackboard_->mutex);
    return copy_out(self(ctx).blackboard_->values[key], buffer, capacity, size, err);
  }

  static int32_t compare_set(void* ctx, const char* key, const void* expected, uint64_t expected_size,
                             const void* desired, uint64_t desired_size, void* buffer, uint64_t capacity,
                             uint64_t* size, bp_error* err) {
    std::string now;
    const int32_t status = self(ctx).change(err, [&](auto& values) {
      const auto found = values.find(key);
      const bool same =
          found == values.end() ? expected_size == 0 : found->second == std::string(bytes(expected), expected_size);
      if (same) values[key] = std::string(bytes(desired), desired_size);
      now = values[key];
    });
    return status == BP_OK ? copy_out(now, buffer, capacity, size, err) : status;
  }

  Blackboard* const blackboard_;
  std::string& log_;
  std::atomic<bool> ending_{false};
  Guarded<bp_host> table_;
};

}  // namespace compat
