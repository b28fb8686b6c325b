// SPDX-License-Identifier: Apache-2.0
//
// Announced messages that the receiver reads in place: from the sender's heap (heap.hpp), or from the sender's process
// (cross_memory.hpp). Every caller holds the lock of Messages.
#pragma once

#include "cross_memory.hpp"
#include "matcher.hpp"
#include "pools.hpp"
#include "transport.hpp"

namespace backplane::shm {

class InPlace {
 public:
  // `pools` and `cross` may be null: heaps, or processes, are not read.
  InPlace(const Pools* pools, CrossMemory* cross) : pools_(pools), cross_(cross) {}

  // For the sender: the location to announce, 0 if none.
  uint64_t location_of(const Operation& send) const;

  // For the receiver: where to read an announced message, if at all. Returns false if the sender named memory that is
  // not its own.
  bool find(int32_t rank, const Arrival& announcement, RemoteBuffer& remote) const;
  // Copies `size` bytes from `offset`. Returns false if they cannot be read. `to` null: discards them.
  bool read(int32_t rank, const RemoteBuffer& remote, uint64_t offset, std::byte* to, uint64_t size) const;

 private:
  const Pools* const pools_;
  CrossMemory* const cross_;
};

}  // namespace backplane::shm
