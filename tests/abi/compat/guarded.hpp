// SPDX-License-Identifier: Apache-2.0
//
// Structs for a plugin, in memory that detects accesses beyond their end.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace compat {

#define COMPAT_CHECK(condition)                                                              \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: this is not true: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                                         \
    }                                                                                        \
  } while (0)

// Further bytes of each struct, covered by its struct_size: fields of a later minor, which a current plugin must not
// access. 0: the struct has the size of these headers.
inline uint32_t tail_size = 0;
constexpr uint8_t kTail = 0xAB;

// A zeroed T with its struct_size, the tail behind it, and an inaccessible page behind the tail.
template <typename T>
class Guarded {
 public:
  Guarded() {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t used = sizeof(T) + tail_size;
    const size_t body = (used + page - 1) / page * page;
    size_ = body + page;
    void* memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    COMPAT_CHECK(memory != MAP_FAILED);
    memory_ = static_cast<uint8_t*>(memory);
    COMPAT_CHECK(::mprotect(memory_ + body, page, PROT_NONE) == 0);
    value_ = reinterpret_cast<T*>(memory_ + body - used);
    std::fill_n(tail(), tail_size, kTail);
    value_->struct_size = static_cast<uint32_t>(used);
  }
  ~Guarded() {
    COMPAT_CHECK(std::all_of(tail(), tail() + tail_size, [](uint8_t byte) { return byte == kTail; }));
    COMPAT_CHECK(value_->struct_size == sizeof(T) + tail_size);
    ::munmap(memory_, size_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* get() const { return value_; }
  T* operator->() const { return value_; }

 private:
  uint8_t* tail() const { return reinterpret_cast<uint8_t*>(value_ + 1); }

  uint8_t* memory_ = nullptr;
  size_t size_ = 0;
  T* value_ = nullptr;
};

}  // namespace compat
