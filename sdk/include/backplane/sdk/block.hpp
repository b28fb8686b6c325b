// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <new>

namespace backplane::sdk {

// An uninitialized receive buffer. Throws std::bad_alloc.
//
// Large blocks are aligned to a page, because the kernel copies faster to page boundaries. Small blocks are aligned to
// 16 bytes, come straight from malloc (aligned allocations fragment its heap) and are not pooled. From 1 MiB on, blocks
// use huge pages where the system has them: one page fault replaces 512, and other processes read them faster.
class Block {
 public:
  static constexpr uint64_t kLarge = 256 << 10;  // bytes

  explicit Block(uint64_t bytes) : size_(rounded(bytes)) {
    const uint64_t unit = unit_of(bytes);
    data_.reset(
        static_cast<std::byte*>(unit > 1 ? std::aligned_alloc(unit, size_) : std::malloc(size_ == 0 ? 1 : size_)));
    if (!data_) throw std::bad_alloc();
    if (unit == kHuge) ::madvise(data_.get(), size_, MADV_HUGEPAGE);  // optional: only affects speed
  }
  std::byte* data() const { return data_.get(); }
  uint64_t size() const { return size_; }  // bytes; at least as requested, at most twice that
  // The size of a new block for this number of bytes.
  static uint64_t rounded(uint64_t bytes) {
    const uint64_t unit = unit_of(bytes);
    return (bytes + unit - 1) / unit * unit;
  }

 private:
  static constexpr uint64_t kPage = 4 << 10;
  static constexpr uint64_t kHuge = 2 << 20;

  static uint64_t unit_of(uint64_t bytes) { return bytes >= kHuge / 2 ? kHuge : bytes >= kLarge ? kPage : 1; }

  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  uint64_t size_;
};

// Reuses large blocks, so that repeated receives of the same sizes touch no new memory. The pool keeps a limited number
// of bytes and frees them when it is destroyed. Thread-safe. Held by shared_ptr: a received buffer may outlive the
// receiver.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  static constexpr uint64_t kSmallest = Block::kLarge;  // bytes; malloc handles smaller sizes well

  explicit BlockPool(uint64_t max_message_bytes) : max_bytes_(max_message_bytes) {}
  ~BlockPool() { close(); }
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Returns at least `bytes`, which return to the pool with the last reference. Throws std::bad_alloc.
  std::shared_ptr<std::byte> take(uint64_t bytes) {
    const auto borrowed = std::make_shared<BorrowedBlock>();
    if (bytes >= kSmallest) {
      borrowed->home = shared_from_this();
      find(bytes, &borrowed->block);
    }
    if (borrowed->block.empty()) borrowed->block.emplace_back(bytes);
    return {borrowed, borrowed->block.front().data()};
  }
  // Frees the kept blocks, and all blocks that are returned later.
  void close() {
    Blocks evicted;  // freed without the lock
    const std::lock_guard lock(mutex_);
    max_bytes_ = 0;
    make_room(0, &evicted);
  }
  uint64_t kept_bytes() const {
    const std::lock_guard lock(mutex_);
    return kept_bytes_;
  }

 private:
  using Blocks = std::list<Block>;  // returning a block allocates nothing

  struct BorrowedBlock {
    BorrowedBlock() = default;
    ~BorrowedBlock() {
      if (home) home->give_back(&block);
    }
    BorrowedBlock(const BorrowedBlock&) = delete;
    BorrowedBlock& operator=(const BorrowedBlock&) = delete;

    Blocks block;  // one
    std::shared_ptr<BlockPool> home;
  };

  // Picks the most recently returned block (its data may still be cached) that wastes little memory.
  void find(uint64_t bytes, Blocks* found) {
    const uint64_t least = Block::rounded(bytes);
    const std::lock_guard lock(mutex_);
    for (auto block = kept_.begin(); block != kept_.end(); ++block) {
      if (block->size() < least || block->size() - least > block->size() / 4) continue;
      move_out(block, found);
      return;
    }
  }
  void give_back(Blocks* block) noexcept {
    Blocks evicted;
    if (block->empty()) return;
    const std::lock_guard lock(mutex_);
    const uint64_t bytes = block->front().size();
    if (bytes > max_bytes_) return;
    make_room(bytes, &evicted);
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(block->front().data(), bytes);
#endif
    kept_.splice(kept_.begin(), *block);
    kept_bytes_ += bytes;
  }
  // Evicts the oldest blocks.
  void make_room(uint64_t bytes, Blocks* evicted) {
    while (kept_bytes_ > 0 && kept_bytes_ + bytes > max_bytes_) move_out(std::prev(kept_.end()), evicted);
  }
  void move_out(Blocks::iterator block, Blocks* to) {
    kept_bytes_ -= block->size();
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(block->data(), block->size());
#endif
    to->splice(to->end(), kept_, block);
  }

  mutable std::mutex mutex_;  // guards all members below
  uint64_t max_bytes_;
  uint64_t kept_bytes_ = 0;
  Blocks kept_;  // most recently returned first
};

}  // namespace backplane::sdk
