// SPDX-License-Identifier: Apache-2.0
//
// Announced messages that the receiver reads in place: from the sender's heap (heap.hpp), or from the sender's process
// (cross_memory.hpp) if that is faster than sending, which is measured per group. Every caller holds the lock of
// Messages.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cross_memory.hpp"
#include "matcher.hpp"
#include "pools.hpp"
#include "transport.hpp"

namespace backplane::shm {

class InPlace {
 public:
  // `pools` and `cross` may be null: heaps, or processes, are not read.
  InPlace(const Pools* pools, CrossMemory* cross)
      : pools_(pools), cross_(cross), tuner_(cross == nullptr ? Cma::kOff : cross->use()) {}

  // For the sender: the location to announce, 0 if none; and whether a message short enough for the channel is
  // announced nevertheless, because it will be read in place.
  uint64_t location_of(const Operation& send) const;
  bool is_preferred(const Operation& send) const;

  // For the receiver: where to read an announced message, if at all. Returns false if the sender named memory that is
  // not its own.
  bool find(int32_t rank, const Arrival& announcement, RemoteBuffer& remote) const;
  // Decides whether to read. Returns when the measurement began, 0 if this message is not measured. `overlaps`: other
  // messages of the sender are arriving, so the time would not be meaningful.
  int64_t decide(int32_t rank, uint64_t size, bool overlaps, RemoteBuffer& remote);
  // Copies `size` bytes from `offset`. Returns false if they cannot be read. `to` null: discards them.
  bool read(int32_t rank, const RemoteBuffer& remote, uint64_t offset, std::byte* to, uint64_t size) const;
  // Ends a measurement.
  void record(uint64_t size, bool was_read, int64_t began);

  // Results of measurements to be logged, without the lock.
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 private:
  void note_refusal();

  const Pools* const pools_;
  CrossMemory* const cross_;
  CopyTuner tuner_;
  std::vector<std::string> notes_;
  bool has_noted_refusal_ = false;  // that a rank cannot be read
};

}  // namespace backplane::shm
