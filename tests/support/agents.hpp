// SPDX-License-Identifier: Apache-2.0
//
// Drives a plugin's backend through the ABI, without the core: one agent per thread, a store in memory. For tests of
// the plugin alone; tests of the API use the library.
#pragma once

#include <dlfcn.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backplane/abi/abi.h"

namespace backplane::test {

// A store and a host table over it, shared by all agents of one group. The job has a secret if BACKPLANE_TEST_SECURE is
// set, unless the constructor's argument overrides it.
class MemoryHost {
 public:
  explicit MemoryHost(bool secure = std::getenv("BACKPLANE_TEST_SECURE") != nullptr)
      : security_{sizeof(bp_security_api), secure ? 1U : 0U},
        table_{sizeof(bp_host), BP_ABI_MINOR, this,      log,   aborted, set, get, add, wait,
               compare_set,     remove,       extension, report} {}
  MemoryHost(const MemoryHost&) = delete;
  MemoryHost& operator=(const MemoryHost&) = delete;
  const bp_host* table() const { return &table_; }
  std::string logged() {
    const std::lock_guard lock(mutex_);
    return logged_;
  }

 private:
  static MemoryHost& self(void* ctx) { return *static_cast<MemoryHost*>(ctx); }
  static void log(void* ctx, uint32_t, const char* text) {
    const std::lock_guard lock(self(ctx).mutex_);
    self(ctx).logged_ += std::string(text) + "\n";
  }
  static int32_t aborted(void*) { return 0; }
  static void report(void* ctx, const bp_error* why) { log(ctx, BP_LOG_ERROR, why->text); }
  static int32_t set(void* ctx, const char* key, const void* value, uint64_t size, bp_error*) {
    const std::lock_guard lock(self(ctx).mutex_);
    self(ctx).values_[key] = std::string(static_cast<const char*>(value), size);
    self(ctx).changed_.notify_all();
    return BP_OK;
  }
  static int32_t get(void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size, int64_t timeout_ns,
                     bp_error* err) {
    const int32_t status = wait(ctx, &key, 1, timeout_ns, err);
    if (status != BP_OK) return status;
    const std::lock_guard lock(self(ctx).mutex_);
    const std::string& value = self(ctx).values_[key];
    *size = value.size();
    if (value.size() > capacity) return bp_error_set(err, BP_RESOURCE, 0, -1, "buffer too small");
    std::memcpy(buffer, value.data(), value.size());
    return BP_OK;
  }
  static int32_t add(void* ctx, const char* key, int64_t delta, int64_t* sum, bp_error*) {
    const std::lock_guard lock(self(ctx).mutex_);
    std::string& value = self(ctx).values_[key];
    *sum = (value.empty() ? 0 : std::stoll(value)) + delta;
    value = std::to_string(*sum);
    self(ctx).changed_.notify_all();
    return BP_OK;
  }
  static int32_t wait(void* ctx, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err) {
    MemoryHost& host = self(ctx);
    std::unique_lock lock(host.mutex_);
    const auto there = [&host, keys, count] {
      for (uint64_t i = 0; i < count; ++i) {
        if (!host.values_.contains(keys[i])) return false;
      }
      return true;
    };
    if (timeout_ns < 0) host.changed_.wait(lock, there);
    if (timeout_ns >= 0 && !host.changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), there)) {
      return bp_error_set(err, BP_TIMEOUT, 0, -1, "a key is missing");
    }
    return BP_OK;
  }
  static int32_t compare_set(void* ctx, const char* key, const void* expected, uint64_t expected_size,
                             const void* desired, uint64_t desired_size, void* buffer, uint64_t capacity,
                             uint64_t* size, bp_error* err) {
    {
      const std::lock_guard lock(self(ctx).mutex_);
      std::string& value = self(ctx).values_[key];
      if (value == std::string(static_cast<const char*>(expected), expected_size)) {
        value.assign(static_cast<const char*>(desired), desired_size);
      }
      self(ctx).changed_.notify_all();
    }
    return get(ctx, key, buffer, capacity, size, 0, err);
  }
  static int32_t remove(void* ctx, const char* key, int32_t* existed, bp_error*) {
    const std::lock_guard lock(self(ctx).mutex_);
    const bool there = self(ctx).values_.erase(key) > 0;
    if (existed != nullptr) *existed = there ? 1 : 0;
    return BP_OK;
  }
  static const void* extension(void* ctx, const char* id) {
    return std::string(id) == BP_EXT_SECURITY ? &self(ctx).security_ : nullptr;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::string logged_;
  const bp_security_api security_;
  const bp_host table_;
};

// Opens a plugin for the life of the process and returns its backend `id`.
inline const bp_backend& open_backend(const std::string& path, const std::string& id) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto* plugin = static_cast<const bp_plugin*>(dlsym(library, BP_PLUGIN_SYMBOL));
  if (plugin == nullptr) throw std::runtime_error("no " BP_PLUGIN_SYMBOL " in " + path);
  for (uint32_t i = 0; i < plugin->backend_count; ++i) {
    if (plugin->backends[i]->id == id) return *plugin->backends[i];
  }
  throw std::runtime_error("no backend " + id + " in " + path);
}

// One rank's agent. Failures of the ABI's functions are exceptions, but for `status` of run(), which is returned.
class Agent {
 public:
  // `options` replaces defaults of the schema.
  Agent(const bp_backend& backend, const bp_host* host, int32_t rank, int32_t world_size,
        const std::map<std::string, std::string>& options = {}, int64_t timeout_ns = INT64_C(20'000'000'000)) {
    std::vector<bp_key_value> values;
    for (uint32_t i = 0; i < backend.option_count; ++i) {
      const bp_option& option = *backend.options[i];
      const auto given = options.find(option.key);
      const char* fallback = option.default_value == nullptr ? "" : option.default_value;
      values.push_back({option.key, given == options.end() ? fallback : given->second.c_str()});
    }
    std::vector<int32_t> ranks;
    for (int32_t i = 0; i < world_size; ++i) ranks.push_back(i);
    const bp_init init = {sizeof(bp_init),
                          rank,
                          world_size,
                          -1,
                          "test",
                          host,
                          nullptr,
                          values.data(),
                          static_cast<uint32_t>(values.size()),
                          BP_KIND_PROCESS_GROUP,
                          timeout_ns,
                          ranks.data(),
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};
    agent_.struct_size = sizeof(bp_agent);
    bp_error err;
    bp_error_init(&err);
    if (backend.init(&backend, &init, &agent_, &err) != BP_OK) throw std::runtime_error(err.text);
    api_ = static_cast<const bp_process_group_api*>(agent_.api);
  }
  ~Agent() { api_->destroy(agent_.self); }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const bp_process_group_api& api() const { return *api_; }
  void* self() const { return agent_.self; }

  // Submits and waits up to op.timeout_ns. *err may be NULL. BP_AGAIN (still in flight) is turned into a cancel and a
  // wait for the terminal state.
  int32_t run(const bp_op& op, bp_error* err = nullptr) {
    bp_work* work = nullptr;
    int32_t status = api_->submit(agent_.self, &op, &work, err);
    if (status != BP_OK || work == nullptr) return status;
    status = api_->work_wait(agent_.self, work, op.timeout_ns, err);
    if (status == BP_AGAIN) {
      api_->work_cancel(agent_.self, work);
      status = api_->work_wait(agent_.self, work, BP_NO_TIMEOUT, err);
    }
    api_->work_release(agent_.self, work);
    return status;
  }

 private:
  bp_agent agent_ = {};
  const bp_process_group_api* api_ = nullptr;
};

// An operation with everything unset but its kind.
inline bp_op make_op(uint32_t kind, uint32_t dtype = BP_U8) {
  bp_op op;
  bp_op_init(&op, kind);
  op.dtype = dtype;
  op.timeout_ns = INT64_C(20'000'000'000);
  return op;
}

// Runs body(rank) on a thread per rank and rethrows the first exception.
inline void on_ranks(int32_t world_size, const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world_size));
  for (int32_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([rank, &body, &errors] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace backplane::test
