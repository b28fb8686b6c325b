// SPDX-License-Identifier: Apache-2.0
#include "heap.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>

namespace backplane::shm {
namespace {

uint64_t whole_pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

class HeapBlock final : public sdk::Allocation {
 public:
  HeapBlock(std::shared_ptr<Arena> arena, uint64_t size)
      : arena_(std::move(arena)), size_(size), offset_(arena_->allocate(size)) {}
  ~HeapBlock() override { arena_->free(offset_, size_); }
  HeapBlock(const HeapBlock&) = delete;
  HeapBlock& operator=(const HeapBlock&) = delete;

  void* data() const override { return arena_->data() + offset_; }

 private:
  const std::shared_ptr<Arena> arena_;
  const uint64_t size_;
  const uint64_t offset_;
};

}  // namespace

Arena::Arena(int fd, uint64_t begin, uint64_t size) : mapping_(fd, size, begin), fd_(fd), begin_(begin) {
  free_.emplace(0, size);
}

uint64_t Arena::allocate(uint64_t size) {
  uint64_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(free_.begin(), free_.end(), [size](const auto& part) { return part.second >= size; });
    if (found == free_.end()) {
      throw sdk::Failure(BP_RESOURCE, "shm: cannot allocate " + std::to_string(size) +
                                          " bytes: the heap of this rank, as large as the host's memory, is full");
    }
    const auto [begin, length] = *found;
    free_.erase(found);
    if (length > size) free_.emplace(begin + size, length - size);
    offset = begin;
  }
  try {
    if (!populate(data() + offset, size, "buffers")) reserve(fd_, begin_ + offset, size, "buffers");
    ::madvise(data() + offset, size, MADV_DODUMP);
  } catch (...) {
    free(offset, size);
    throw;
  }
  return offset;
}

void Arena::free(uint64_t offset, uint64_t size) noexcept {
  ::madvise(data() + offset, size, MADV_REMOVE);
  ::madvise(data() + offset, size, MADV_DONTDUMP);
  const std::lock_guard lock(mutex_);
  try {
    insert(offset, size);
  } catch (const std::bad_alloc&) {  // this part of the address space is not reused
  }
}

void Arena::insert(uint64_t offset, uint64_t size) {
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_.emplace(offset, size);
}

Heaps::Heaps(sdk::Descriptor file, uint64_t begin, uint64_t size, int32_t rank, int32_t world_size)
    : file_(std::move(file)), begin_(begin), size_(size), rank_(rank), theirs_(static_cast<size_t>(world_size)) {}

std::unique_ptr<sdk::Allocation> Heaps::allocate(uint64_t bytes, uint32_t memory, int32_t /*device*/) {
  if (memory != BP_HOST) throw sdk::Failure(BP_UNSUPPORTED, "shm allocates host memory only");
  if (size_ == 0) {
    throw sdk::Failure(BP_UNSUPPORTED, "limits on file size or address space (ulimit -f, -v) leave no room for heaps");
  }
  if (bytes > size_) {
    throw sdk::Failure(BP_RESOURCE, "shm: " + std::to_string(bytes) + " bytes exceed the memory of this host");
  }
  std::shared_ptr<Arena> arena;
  {
    const std::lock_guard lock(mutex_);
    if (is_retired_)
      throw sdk::Failure(BP_UNSUPPORTED, "the heap is disabled: a collective that exposed it has failed");
    if (!own_) {
      own_ = std::make_shared<Arena>(file_.get(), begin_ + static_cast<uint64_t>(rank_) * size_, size_);
      base_.store(own_->data());
    }
    arena = own_;
  }
  return std::make_unique<HeapBlock>(std::move(arena), whole_pages(bytes));
}

void Heaps::retire() noexcept {
  const std::lock_guard lock(mutex_);
  is_retired_ = true;
  base_.store(nullptr);
  own_.reset();
}

uint64_t Heaps::location_of(const std::byte* data, uint64_t size) const {
  const auto base = reinterpret_cast<uintptr_t>(base_.load(std::memory_order_relaxed));
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (base == 0 || address < base) return 0;
  const uint64_t offset = address - base;
  return offset <= size_ && size <= size_ - offset ? 1 + offset : 0;
}

std::byte* Heaps::at(int32_t rank, uint64_t location, uint64_t size, uint64_t alignment) {
  const uint64_t offset = location - 1;
  if (location == 0 || offset > size_ || size > size_ - offset || offset % alignment != 0) return nullptr;
  const std::lock_guard lock(mutex_);
  auto& mapping = theirs_[static_cast<size_t>(rank)];
  if (!mapping) {
    mapping = std::make_unique<Mapping>(file_.get(), size_, begin_ + static_cast<uint64_t>(rank) * size_);
  }
  return mapping->data() + offset;
}

}  // namespace backplane::shm
