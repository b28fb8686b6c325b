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

// Memory to receive into: not cleared, and aligned to 16 bytes, or to a page where it is large, because the kernel
// copies faster to where a page begins. Smaller blocks, of which no pool keeps any, come straight from malloc, whose
// heap falls apart where aligned ones come and go. From 1 MiB on it lies in huge pages where the system has them: to
// touch them for the first time takes the kernel one step for each instead of 512, and other processes read them
// faster. Throws std::bad_alloc.
class Block {
 public:
  static constexpr uint64_t kLarge = 256 << 10;  // bytes

  explicit Block(uint64_t bytes) : size_(rounded(bytes)) {
    const uint64_t unit = unit_of(bytes);
    data_.reset(
        static_cast<std::byte*>(unit > 1 ? std::aligned_alloc(unit, size_) : std::malloc(size_ == 0 ? 1 : size_)));
    if (!data_) throw std::bad_alloc();
    if (unit == kHuge) ::madvise(data_.get(), size_, MADV_HUGEPAGE);  // it is as good without, only slower
  }
  std::byte* data() const { return data_.get(); }
  uint64_t size() const { return size_; }  // bytes; perhaps more than were asked for, at most twice as many
  // The size of a new one.
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

// Large blocks that are used again: whoever receives the same sizes again and again touches no new memory. What is kept
// has a limit, and goes with the pool. Any thread. Made shared: what was received may outlive whoever received it.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  static constexpr uint64_t kSmallest = Block::kLarge;  // bytes; malloc is good at what is smaller

  explicit BlockPool(uint64_t max_message_bytes) : most_bytes_(max_message_bytes) {}
  ~BlockPool() { close(); }
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // At least `bytes`, for as long as somebody has the pointer. Throws std::bad_alloc.
  std::shared_ptr<std::byte> take(uint64_t bytes) {
    const auto lent = std::make_shared<Lent>();
    if (bytes >= kSmallest) {
      lent->home = shared_from_this();
      find(bytes, &lent->block);
    }
    if (lent->block.empty()) lent->block.emplace_back(bytes);
    return {lent, lent->block.front().data()};
  }
  // Frees what is kept, and what comes back from now on.
  void close() {
    Blocks gone;  // freed without the lock
    const std::lock_guard lock(mutex_);
    most_bytes_ = 0;
    make_room(0, &gone);
  }
  uint64_t kept_bytes() const {
    const std::lock_guard lock(mutex_);
    return kept_bytes_;
  }

 private:
  using Blocks = std::list<Block>;  // what comes back needs no memory

  struct Lent {
    Lent() = default;
    ~Lent() {
      if (home) home->give_back(&block);
    }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

    Blocks block;  // one
    std::shared_ptr<BlockPool> home;
  };

  // The latest, which may still be in the caches, of those of which little would be wasted.
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
    Blocks gone;
    if (block->empty()) return;
    const std::lock_guard lock(mutex_);
    const uint64_t bytes = block->front().size();
    if (bytes > most_bytes_) return;
    make_room(bytes, &gone);
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(block->front().data(), bytes);
#endif
    kept_.splice(kept_.begin(), *block);
    kept_bytes_ += bytes;
  }
  // The oldest go.
  void make_room(uint64_t bytes, Blocks* gone) {
    while (kept_bytes_ > 0 && kept_bytes_ + bytes > most_bytes_) move_out(std::prev(kept_.end()), gone);
  }
  void move_out(Blocks::iterator block, Blocks* to) {
    kept_bytes_ -= block->size();
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(block->data(), block->size());
#endif
    to->splice(to->end(), kept_, block);
  }

  mutable std::mutex mutex_;  // guards what follows
  uint64_t most_bytes_;
  uint64_t kept_bytes_ = 0;
  Blocks kept_;  // the latest first
};

}  // namespace backplane::sdk
