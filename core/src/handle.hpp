// SPDX-License-Identifier: Apache-2.0
//
// Handles and pointer arguments of the C API. BP_INVALID for NULL, for released handles, and in a child made by fork
// for those of its parent, to which it can do nothing: it does not even release them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

#include "error.hpp"
#include "process.hpp"

namespace backplane::core {

// Whether a child made by fork may use its parent's handles of a type. Those of data alone are usable.
enum class AfterFork { kInvalid, kUsable };

// Base of the object behind a handle. The memory of a released handle is marked and kept, so that late use is detected.
// A new handle of the type reuses it once kQuarantined others have been released after it.
template <typename T, AfterFork kAfterFork = AfterFork::kInvalid>
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  bool is_live() const { return mark_.load(std::memory_order_relaxed) == live_mark(); }
  // The process that made it; not valid if it was released.
  ProcessMark made_in() const { return ProcessMark::from(mark_.load(std::memory_order_relaxed)); }

  static void* operator new(size_t size) { return quarantine().take(size); }
  static void operator delete(void* memory) { quarantine().give(memory); }

 private:
  static constexpr uint64_t kLive = UINT64_C(0x6c6976656c697665);
  static constexpr size_t kQuarantined = 1024;

  class Quarantine {
   public:
    void* take(size_t size) {
      {
        const std::lock_guard lock(mutex_);
        if (released_.size() > kQuarantined) {
          void* const memory = released_.front();
          released_.pop_front();
          return memory;
        }
      }
      return ::operator new(size);
    }
    void give(void* memory) {
      reinterpret_cast<std::atomic<uint64_t>*>(memory)->store(0, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      released_.push_back(memory);
    }

   private:
    std::mutex mutex_;
    std::deque<void*> released_;
  };

  static Quarantine& quarantine() {
    static constinit PerProcess<Quarantine> instance;
    return *instance;
  }

  static uint64_t live_mark() { return kAfterFork == AfterFork::kUsable ? kLive : ProcessMark::current().bits(); }

  std::atomic<uint64_t> mark_{live_mark()};  // the first member of the first base: `give` knows where it is
};

// The object of a pointer argument. BP_INVALID with its name if it is NULL.
template <typename T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) fail(BP_INVALID, "`{}` must not be NULL", name);
  return *pointer;
}

// The object of a handle. BP_INVALID if it is NULL, was released, or belongs to the process that forked this one.
template <typename T>
T& live(T* handle, const char* name) {
  if (required(handle, name).is_live()) return *handle;
  const ProcessMark made_in = handle->made_in();
  fail(BP_INVALID, "`{}` {}", name, made_in.is_valid() ? inherited_text(made_in) : "was released");
}

// *result = make(). BP_INVALID if `result` is NULL.
template <typename T, typename Make>
void store_result(T* result, const char* name, Make&& make) {
  required(result, name);
  *result = std::forward<Make>(make)();
}

// For functions without an error argument.
template <typename T>
bool is_live(const T* handle) {
  return handle != nullptr && handle->is_live();
}

// Copies a struct of the caller, which may be older or newer than this core. Fields that it lacks keep their defaults
// in *taken. BP_INVALID if it is shorter than in the first release.
template <typename T>
void take_known(const T& given, size_t first_size, const char* name, T* taken) {
  if (given.struct_size < first_size) {
    fail(BP_INVALID, "{}.struct_size is {}; at least {} is needed", name, given.struct_size, first_size);
  }
  std::memcpy(taken, &given, std::min<size_t>(given.struct_size, sizeof *taken));
  taken->struct_size = sizeof *taken;
}

// A list argument. BP_INVALID if it is NULL with a count above 0, or too long for any memory.
template <typename T>
std::pair<const T*, const T*> list_of(const T* items, uint64_t count, const char* name) {
  constexpr uint64_t kMost = UINT64_C(1) << 32;
  if (count > kMost) fail(BP_INVALID, "`{}` has {} elements; at most {} are possible", name, count, kMost);
  if (count > 0) required(items, name);
  return {items, items + count};
}

// new_handle<bp_request>(request): the handle with its members.
template <typename T, typename... Members>
T* new_handle(Members&&... members) {
  return new T{{}, std::forward<Members>(members)...};
}

// Releases a handle. Ignores NULL, released and inherited ones.
template <typename T>
void release(T* handle) {
  if (is_live(handle)) delete handle;
}

}  // namespace backplane::core
