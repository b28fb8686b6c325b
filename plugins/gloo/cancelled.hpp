// SPDX-License-Identifier: Apache-2.0
//
// Buffers in the place of those of cancelled operations. Only the parts of the pair use them, under its lock.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "buffer.hpp"

namespace backplane::gloo {

// Orphans replace cancelled receives whose messages the peer may send: each keeps one message for a later receive of
// its slot. An orphan without its message is also in gloo's queue of receives, or its message arrives.
class Orphans {
 public:
  explicit Orphans(std::shared_ptr<const Health> health) : health_(std::move(health)) {}

  std::unique_ptr<Buffer> make() const;
  void add_youngest(uint64_t slot, std::unique_ptr<Buffer> orphan) { by_slot_[slot].push_back(std::move(orphan)); }
  void add_oldest(uint64_t slot, std::unique_ptr<Buffer> orphan) { by_slot_[slot].push_front(std::move(orphan)); }
  bool contains(const ::gloo::transport::tcp::UnboundBuffer* buffer, uint64_t slot) const;
  // Removes and returns the oldest of the slot; null if there is none.
  std::unique_ptr<Buffer> take_oldest(uint64_t slot);
  // Whether the oldest of the slot has its message.
  bool has_filled(uint64_t slot) const;

  // Removes an orphan that is not needed any more. It lives until destroy_retired, because the caller refers to it.
  void retire(uint64_t slot, const Buffer& orphan);
  void retire(std::unique_ptr<Buffer> orphan) { retired_.push_back(std::move(orphan)); }
  void destroy_retired() { retired_.clear(); }

 private:
  const std::shared_ptr<const Health> health_;
  std::unordered_map<uint64_t, std::deque<std::unique_ptr<Buffer>>> by_slot_;  // oldest first, none is empty
  std::vector<std::unique_ptr<Buffer>> retired_;
};

// Copies of messages whose sends were cancelled before they were written.
class DetachedSends {
 public:
  explicit DetachedSends(std::shared_ptr<const Health> health) : health_(std::move(health)) {}

  // Copies a part of a buffer, and returns the buffer to send from instead. Throws std::bad_alloc, also if it is longer
  // than 1 GiB.
  WeakBuffer copy(const ::gloo::transport::tcp::UnboundBuffer& buffer, size_t offset, size_t bytes);
  void destroy_sent();

 private:
  struct Copy {
    std::unique_ptr<char[]> bytes;
    std::unique_ptr<Buffer> buffer;
  };

  const std::shared_ptr<const Health> health_;
  std::list<Copy> copies_;
};

}  // namespace backplane::gloo
