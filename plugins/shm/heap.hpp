// SPDX-License-Identifier: Apache-2.0
//
// Memory of each rank's own that all ranks of the group can reach: `backplane.memory/1`. Behind the fixed part of the
// segment's file each rank has a heap, of so much address space as the host has memory; pages exist where something was
// allocated. A rank maps its own heap when it first allocates, and another's when that rank first names a place in it.
//
// Who may write there, and when, is the affair of lending.hpp.
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

// Which parts of a heap are free, in bytes from its beginning. Any thread.
class Arena {
 public:
  // The `size` bytes of the file from `begin` on. Without the file nothing more may be taken.
  Arena(int fd, uint64_t begin, uint64_t size);

  // First fit, whole pages, which the system has provided. Throws BP_RESOURCE.
  uint64_t take(uint64_t size);
  // Its pages go back to the system.
  void give_back(uint64_t offset, uint64_t size) noexcept;

  std::byte* data() const { return mapping_.data(); }

 private:
  void insert(uint64_t offset, uint64_t size);

  const Mapping mapping_;
  const int fd_;  // not its own: closing one would end the process's locks of bytes of this file (cross_memory.hpp)
  const uint64_t begin_;
  std::mutex mutex_;                   // guards what follows
  std::map<uint64_t, uint64_t> free_;  // size by offset; neighbours are joined
};

class Heaps final : public sdk::MemoryPool {
 public:
  // Rank r's heap is the `size` bytes of the file that begin at begin + r * size. size 0: there are none.
  Heaps(sdk::Descriptor file, uint64_t begin, uint64_t size, int32_t rank, int32_t world_size);

  int file() const { return file_.get(); }
  uint64_t size() const { return size_; }
  // There are none, because a rank could not map them. Before the first is used.
  void forgo() { size_ = 0; }

  // Memory of this rank's heap. Any thread.
  std::unique_ptr<sdk::Allocation> allocate(uint64_t bytes, uint32_t memory, int32_t device) override;

  // Where in this rank's heap these bytes lie, if all of them do: 1 + offset; else 0. Any thread.
  uint64_t place_of(const std::byte* data, uint64_t size) const;
  // What another rank says that lies there: `place` is whatever it wrote. Null if it is not `size` bytes of its heap
  // that begin at a multiple of `alignment`. Throws BP_RESOURCE. Any thread.
  std::byte* at(int32_t rank, uint64_t place, uint64_t size, uint64_t alignment);

  // From now on this rank has no heap: what was allocated there is ordinary memory until it is released. For pages that
  // may no longer be what the others see. Any thread.
  void retire() noexcept;

 private:
  const sdk::Descriptor file_;
  const uint64_t begin_;
  uint64_t size_;
  const int32_t rank_;
  std::mutex mutex_;  // guards what follows
  bool is_retired_ = false;
  std::shared_ptr<Arena> own_;                    // allocations keep it, also when the group has ended
  std::atomic<std::byte*> base_ = nullptr;        // of own_
  std::vector<std::unique_ptr<Mapping>> theirs_;  // by rank
};

}  // namespace backplane::shm
