// SPDX-License-Identifier: Apache-2.0
//
// Memory<T>, the result of ProcessGroup::allocate.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "backplane/error.hpp"
#include "backplane/types.hpp"

namespace backplane {
namespace detail {

using MemoryHandle = std::unique_ptr<bp_memory, decltype(&bp_memory_release)>;

inline MemoryHandle allocate(bp_group* group, uint64_t count, uint64_t size, Device device) {
  if (count > std::numeric_limits<uint64_t>::max() / size) {
    fail(Status::kResource, "allocate: the size in bytes exceeds 64 bits; allocate fewer elements");
  }
  bp_memory* memory = nullptr;
  call(bp_group_allocate, group, count * size, device.memory, device.ordinal, &memory);
  return MemoryHandle(memory, bp_memory_release);
}

inline MemoryHandle register_memory(bp_group* group, const Buffer& buffer) {
  bp_memory* memory = nullptr;
  call(bp_group_register, group, buffer.data(), buffer.count() * size_of(buffer.dtype()), buffer.device().memory,
       buffer.device().ordinal, &memory);
  return MemoryHandle(memory, bp_memory_release);
}

}  // namespace detail

// Memory that the operations of a group access without a copy, if the group's backend offers such memory, and ordinary
// memory otherwise.
//
//     backplane::Memory<float> gradient = group.allocate<float>(n);
//     group.all_reduce(gradient);
//
// Owns `size()` elements, whose values are undefined at first. A contiguous range: all of it, or a std::span of a part,
// converts to a buffer. Movable, not copyable. Must stay alive until the operations that use it are done. May outlive
// its group. May be destroyed on any thread.
template <Element T>
class Memory {
 public:
  using value_type = T;

  Memory() = default;
  Memory(Memory&& other) noexcept
      : handle_(std::move(other.handle_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    handle_ = std::move(other.handle_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  uint64_t size() const { return size_; }  // elements
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](uint64_t index) { return data_[index]; }
  const T& operator[](uint64_t index) const { return data_[index]; }

  // True if the memory is the backend's, false if it is ordinary memory.
  bool native() const { return handle_ && bp_memory_native(handle_.get()) != 0; }

 private:
  friend class ProcessGroup;
  Memory(detail::MemoryHandle handle, uint64_t size)
      : handle_(std::move(handle)), data_(static_cast<T*>(bp_memory_data(handle_.get()))), size_(size) {}

  detail::MemoryHandle handle_{nullptr, bp_memory_release};
  T* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace backplane
