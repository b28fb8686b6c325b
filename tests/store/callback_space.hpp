// SPDX-License-Identifier: Apache-2.0
//
// Key-value spaces of programs, and callbacks over them.
#pragma once

#include <charconv>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "backplane/backplane.h"
#include "store/store.hpp"
#include "store_fixture.hpp"

namespace backplane::core {

// The stores over a space. The destructor waits for their ends, because a detached callback still uses the space.
class Users {
 public:
  ~Users() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [this] { return count_ == 0; });
  }
  void enter() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --count_;
    none_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int count_ = 0;
};

// A map whose `get` never waits.
class MapSpace {
 public:
  std::shared_ptr<Store> open() {
    bp_store_callbacks table = callbacks();
    table.release = [](void* ctx) { of(ctx).users_.leave(); };
    users_.enter();
    return make_callback_store(table);
  }

  bp_store_callbacks callbacks() {
    bp_store_callbacks table;
    bp_store_callbacks_init(&table);
    table.name = "map://test";
    table.ctx = this;
    table.set = [](void* ctx, const char* key, const void* value, uint64_t size, int64_t, bp_error*) {
      const auto lock = of(ctx).lock();
      of(ctx).values_[key] = text(value, size);
      return int32_t{BP_OK};
    };
    table.get = [](void* ctx, const char* key, bp_store_answer* answer, int64_t, bp_error* err) {
      const auto lock = of(ctx).lock();
      const auto found = of(ctx).values_.find(key);
      return found == of(ctx).values_.end() ? int32_t{BP_TIMEOUT} : give(answer, found->second, err);
    };
    table.add = [](void* ctx, const char* key, int64_t delta, int64_t* sum, int64_t, bp_error* err) {
      const auto lock = of(ctx).lock();
      std::string& held = of(ctx).values_.try_emplace(key, "0").first->second;
      int64_t value = 0;
      const auto parsed = std::from_chars(held.data(), held.data() + held.size(), value);
      if (parsed.ptr != held.data() + held.size()) {
        return bp_error_set(err, BP_INVALID, 0, -1,
                            fmt::format("its value '{}' is not a decimal number", held).c_str());
      }
      if (__builtin_add_overflow(value, delta, sum)) return bp_error_set(err, BP_INVALID, 0, -1, "an overflow");
      held = std::to_string(*sum);
      return int32_t{BP_OK};
    };
    table.compare_set = [](void* ctx, const char* key, const void* expected, uint64_t expected_size,
                           const void* desired, uint64_t desired_size, bp_store_answer* answer, int64_t,
                           bp_error* err) {
      const auto lock = of(ctx).lock();
      const auto found = of(ctx).values_.find(key);
      const std::string held = found == of(ctx).values_.end() ? "" : found->second;
      if (held != text(expected, expected_size)) return give(answer, held, err);
      return give(answer, of(ctx).values_[key] = text(desired, desired_size), err);
    };
    table.delete_key = [](void* ctx, const char* key, int32_t* existed, int64_t, bp_error*) {
      const auto lock = of(ctx).lock();
      *existed = static_cast<int32_t>(of(ctx).values_.erase(key));
      return int32_t{BP_OK};
    };
    table.num_keys = [](void* ctx, int64_t* count, int64_t, bp_error*) {
      const auto lock = of(ctx).lock();
      *count = static_cast<int64_t>(of(ctx).values_.size());
      return int32_t{BP_OK};
    };
    return table;
  }

 private:
  static MapSpace& of(void* ctx) { return *static_cast<MapSpace*>(ctx); }
  static std::string text(const void* data, uint64_t size) { return {static_cast<const char*>(data), size}; }
  static int32_t give(bp_store_answer* answer, const std::string& value, bp_error* err) {
    return bp_store_answer_set(answer, value.data(), value.size(), err);
  }
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  Users users_;  // ends first
};

// A store of the C API, whose `get` waits.
class StoreSpace {
 public:
  std::shared_ptr<Store> open() {
    bp_store_callbacks table = callbacks();
    table.release = [](void* ctx) { static_cast<StoreSpace*>(ctx)->users_.leave(); };
    users_.enter();
    return make_callback_store(table);
  }

 private:
  bp_store_callbacks callbacks() {
    bp_store_callbacks table;
    bp_store_callbacks_init(&table);
    table.ctx = this;
    table.set = [](void* ctx, const char* key, const void* value, uint64_t size, int64_t timeout_ns, bp_error* err) {
      return bp_store_set(of(ctx), key, value, size, timeout_ns, err);
    };
    table.get = [](void* ctx, const char* key, bp_store_answer* answer, int64_t timeout_ns, bp_error* err) {
      char* value = nullptr;
      uint64_t size = 0;
      const int32_t status = bp_store_get(of(ctx), key, &value, &size, timeout_ns, err);
      return status == BP_OK ? give(answer, value, size, err) : status;
    };
    table.add = [](void* ctx, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ns, bp_error* err) {
      return bp_store_add(of(ctx), key, delta, sum, timeout_ns, err);
    };
    table.compare_set = [](void* ctx, const char* key, const void* expected, uint64_t expected_size,
                           const void* desired, uint64_t desired_size, bp_store_answer* answer, int64_t timeout_ns,
                           bp_error* err) {
      char* value = nullptr;
      uint64_t size = 0;
      const int32_t status = bp_store_compare_set(of(ctx), key, expected, expected_size, desired, desired_size, &value,
                                                  &size, timeout_ns, err);
      return status == BP_OK ? give(answer, value, size, err) : status;
    };
    table.delete_key = [](void* ctx, const char* key, int32_t* existed, int64_t timeout_ns, bp_error* err) {
      return bp_store_delete(of(ctx), key, existed, timeout_ns, err);
    };
    table.num_keys = [](void* ctx, int64_t* count, int64_t timeout_ns, bp_error* err) {
      return bp_store_num_keys(of(ctx), count, timeout_ns, err);
    };
    return table;
  }

  static bp_store* make() {
    bp_store* store = nullptr;
    EXPECT_EQ(bp_store_create_inproc(&store, nullptr), BP_OK);
    return store;
  }
  static bp_store* of(void* ctx) { return static_cast<StoreSpace*>(ctx)->store_.get(); }
  static int32_t give(bp_store_answer* answer, char* value, uint64_t size, bp_error* err) {
    const int32_t status = bp_store_answer_set(answer, value, size, err);
    bp_free(value);
    return status;
  }

  const std::unique_ptr<bp_store, void (*)(bp_store*)> store_{make(), bp_store_release};
  Users users_;  // ends first
};

}  // namespace backplane::core
