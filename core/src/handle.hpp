// SPDX-License-Identifier: Apache-2.0
//
// Handles of the C API and the pointers that come with them: NULL and released handles are answered with BP_INVALID.
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

namespace backplane::core {

// Base of what is behind a handle. The memory of a released handle stays with the process and is marked, so that it can
// be asked whether it lives. It serves a new handle of its type once kResting others have been released after it; until
// then a call with the released one is recognised for certain.
template <typename T>
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  bool is_live() const { return mark_.load(std::memory_order_relaxed) == kLive; }

  static void* operator new(size_t size) { return resting().take(size); }
  static void operator delete(void* memory) { resting().give(memory); }

 private:
  static constexpr uint64_t kLive = UINT64_C(0x6c6976656c697665);
  static constexpr size_t kResting = 1024;

  class Resting {
   public:
    void* take(size_t size) {
      {
        const std::lock_guard lock(mutex_);
        if (released_.size() > kResting) {
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

  static Resting& resting() {
    static auto* const instance = new Resting;  // other threads may use it while the process ends
    return *instance;
  }

  std::atomic<uint64_t> mark_{kLive};  // the first member of the first base: `give` knows where it is
};

// What a pointer of the caller's points to; BP_INVALID names it if it is NULL.
template <typename T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) fail(BP_INVALID, "`{}` must not be NULL", name);
  return *pointer;
}

// What is behind a handle; BP_INVALID if it is NULL or was released.
template <typename T>
T& live(T* handle, const char* name) {
  if (!required(handle, name).is_live()) fail(BP_INVALID, "`{}` was released", name);
  return *handle;
}

// *place = make(), unless the place is NULL.
template <typename T, typename Make>
void hand_out(T* place, const char* name, Make&& make) {
  required(place, name);
  *place = std::forward<Make>(make)();
}

// For functions that have no error to report.
template <typename T>
bool is_live(const T* handle) {
  return handle != nullptr && handle->is_live();
}

// Copies a struct of the caller's, which may be older than this core (its later fields keep their defaults in *taken)
// or newer. BP_INVALID if it is shorter than in the first release.
template <typename T>
void take_known(const T& given, size_t first_size, const char* name, T* taken) {
  if (given.struct_size < first_size) {
    fail(BP_INVALID, "{}.struct_size is {}; at least {} is needed", name, given.struct_size, first_size);
  }
  std::memcpy(taken, &given, std::min<size_t>(given.struct_size, sizeof *taken));
  taken->struct_size = sizeof *taken;
}

// A list of the caller's. BP_INVALID if it is NULL but for its count, or longer than any that fits into memory.
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

// Gives a handle back: of NULL and of what was released already, nothing.
template <typename T>
void release(T* handle) {
  if (is_live(handle)) delete handle;
}

}  // namespace backplane::core
