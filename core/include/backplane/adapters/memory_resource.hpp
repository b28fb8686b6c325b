// SPDX-License-Identifier: Apache-2.0
//
// Memory of a group for containers of the standard library.
//
//     backplane::MemoryResource memory(group);
//     std::pmr::vector<float> gradient(n, &memory);
//     group.all_reduce(gradient);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <unordered_map>

#include "backplane/process_group.hpp"

namespace backplane {

// Allocations of at least `threshold` bytes are ProcessGroup::allocate's; smaller ones, and those aligned to more than
// 64 bytes, are made by `upstream`. Allocating throws what ProcessGroup::allocate throws, after the group has ended as
// well; memory that exists stays valid then, and may be freed. Must outlive its containers. Thread-safe.
//
// As with all memory of a group: a child of fork does not have it, so do not use this object as the default resource of
// a program that forks.
class MemoryResource final : public std::pmr::memory_resource {
 public:
  static constexpr size_t kThreshold = size_t{64} << 10;  // bytes

  // `group` and `upstream` must outlive this object.
  explicit MemoryResource(ProcessGroup& group, size_t threshold = kThreshold,
                          std::pmr::memory_resource* upstream = std::pmr::get_default_resource())
      : group_(group), threshold_(threshold), upstream_(upstream) {}
  MemoryResource(const MemoryResource&) = delete;
  MemoryResource& operator=(const MemoryResource&) = delete;

 private:
  static constexpr size_t kAlignment = 64;  // of the group's memory, at least

  void* do_allocate(size_t bytes, size_t alignment) override {
    if (bytes == 0 || bytes < threshold_ || alignment > kAlignment) return upstream_->allocate(bytes, alignment);
    Memory<std::byte> memory = group_.allocate<std::byte>(bytes);
    void* const data = memory.data();
    const std::lock_guard lock(mutex_);
    allocated_.emplace(data, std::move(memory));
    return data;
  }
  void do_deallocate(void* data, size_t bytes, size_t alignment) override {
    if (bytes == 0 || bytes < threshold_ || alignment > kAlignment)
      return upstream_->deallocate(data, bytes, alignment);
    const std::lock_guard lock(mutex_);
    allocated_.erase(data);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  ProcessGroup& group_;
  const size_t threshold_;
  std::pmr::memory_resource* const upstream_;
  std::mutex mutex_;
  std::unordered_map<void*, Memory<std::byte>> allocated_;  // by address
};

}  // namespace backplane
