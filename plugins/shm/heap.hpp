// SPDX-License-Identifier: Apache-2.0
//
// Memory of each rank that all ranks of the group can access: `backplane.memory/1`. Behind the fixed part of the
// segment's file each rank has a heap, with as much address space as the host has memory; pages exist where something
// is allocated. A rank maps its own heap at the first allocation, and another rank's when that rank first publishes a
// location in it.
//
// zero_copy.hpp defines who may write there and when.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backplane/sdk/memory.hpp"
#include "backplane/sdk/sockets.hpp"
#include "memory.hpp"

namespace backplane::shm {

// Allocator of a heap, in bytes from its beginning. Thread-safe.
class Arena {
 public:
  // Maps `size` bytes of the file from `begin`. The file must stay open for allocations.
  Arena(int fd, uint64_t begin, uint64_t size);

  // First fit, whole pages, populated. Throws BP_RESOURCE.
  uint64_t allocate(uint64_t size);
  // Returns the pages to the system.
  void free(uint64_t offset, uint64_t size) noexcept;

  std::byte* data() const { return mapping_.data(); }

 private:
  void insert(uint64_t offset, uint64_t size);

  const Mapping mapping_;
  const int fd_;  // not owned: closing a descriptor would release the process's locks on the file (cross_memory.hpp)
  const uint64_t begin_;
  std::mutex mutex_;                   // guards what follows
  std::map<uint64_t, uint64_t> free_;  // size by offset; adjacent parts are merged
};

class Heaps final : public sdk::MemoryPool {
 public:
  // Rank r's heap is the `size` bytes of the file from begin + r * size. size 0: there are no heaps.
  Heaps(sdk::Descriptor file, uint64_t begin, uint64_t size, int32_t rank, int32_t world_size);

  int file() const { return file_.get(); }
  uint64_t size() const { return size_; }
  // Disables heaps because a rank cannot map them. Call before the first use.
  void disable() { size_ = 0; }

  // Allocates from this rank's heap. Any thread.
  std::unique_ptr<sdk::Allocation> allocate(uint64_t bytes, uint32_t memory, int32_t device) override;

  // 1 + the offset of these bytes in this rank's heap; 0 if they are not entirely in it. Any thread.
  uint64_t location_of(const std::byte* data, uint64_t size) const;
  // The address of a location published by another rank, which is untrusted. Null unless `size` bytes of that rank's
  // heap begin there at a multiple of `alignment`. Throws BP_RESOURCE. Any thread.
  std::byte* at(int32_t rank, uint64_t location, uint64_t size, uint64_t alignment);

  // Disables this rank's heap for good: earlier allocations are ordinary memory until they are released. Used when
  // pages may differ from those that others see. Any thread.
  void retire() noexcept;

 private:
  const sdk::Descriptor file_;
  const uint64_t begin_;
  uint64_t size_;
  const int32_t rank_;
  std::mutex mutex_;  // guards what follows
  bool is_retired_ = false;
  std::shared_ptr<Arena> own_;                    // kept alive by allocations after the group has ended
  std::atomic<std::byte*> base_ = nullptr;        // of own_
  std::vector<std::unique_ptr<Mapping>> theirs_;  // by rank
};

}  // namespace backplane::shm
