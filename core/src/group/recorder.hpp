// SPDX-License-Identifier: Apache-2.0
//
// The flight recorder: the last operations of a group in a ring of fixed size. Writing is wait-free and does not
// allocate, so it is always enabled. Fields are atomics: a reader may read an entry while it is overwritten, and drops
// the entry if its number has changed meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "backplane/abi/op.h"
#include "backplane/abi/status.h"
#include "group/tick_clock.hpp"

namespace backplane::core {

class Recorder {
 public:
  static constexpr uint64_t kEntries = 1024;  // a power of two

  // One operation.
  struct Entry {
    uint64_t number = 0;  // counts all operations of the group on this rank
    uint64_t seq = 0;
    uint64_t count = 0;
    uint64_t tag = 0;
    uint32_t kind = 0;
    uint32_t dtype = 0;
    uint32_t reduce_op = 0;
    int32_t rank = -1;     // root or peer
    int32_t status = 0;    // BP_AGAIN while in flight
    int64_t begin_ns = 0;  // CLOCK_MONOTONIC
    int64_t end_ns = 0;    // 0 while in flight
  };

  // The next sequence number. Collectives and messages are counted separately, from 1.
  uint64_t next_seq(bool is_collective) {
    return (is_collective ? collectives_ : messages_).fetch_add(1, std::memory_order_relaxed) + 1;
  }
  uint64_t collectives() const { return collectives_.load(); }
  // Keeps a copy of the entry of collective #seq when it starts. Replaces the previous copy.
  void keep_collective(uint64_t seq) { kept_seq_.store(seq, std::memory_order_relaxed); }

  // Records the start of an operation. Returns its number for `finish`.
  uint64_t start(const bp_op& op, uint64_t seq, uint64_t count, int32_t rank) {
    const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    fill(slots_[number % kEntries], number, op, seq, count, rank);
    if (seq == kept_seq_.load(std::memory_order_relaxed) && op.kind != BP_SEND && op.kind != BP_RECV) {
      fill(kept_, number, op, seq, count, rank);
    }
    return number;
  }

  // Records the end of an operation unless its entry has been overwritten.
  void finish(uint64_t number, int32_t status) {
    Slot& slot = slots_[number % kEntries];
    if (slot.number.load(std::memory_order_relaxed) != number) return;
    slot.status.store(status, std::memory_order_relaxed);
    slot.end.store(clock_.now(), std::memory_order_relaxed);
  }

  // The entries that have not been overwritten, oldest first.
  std::vector<Entry> entries() const;
  // The entry of collective #seq, if it was kept or has not been overwritten.
  std::optional<Entry> find_collective(uint64_t seq) const;

 private:
  static constexpr uint64_t kNoNumber = UINT64_MAX;  // of a slot that is empty or being filled
  struct alignas(64) Slot {
    std::atomic<uint64_t> number = kNoNumber;
    std::atomic<uint64_t> seq = 0;
    std::atomic<uint64_t> count = 0;
    std::atomic<uint64_t> tag = 0;
    std::atomic<uint32_t> what = 0;
    std::atomic<int32_t> rank = -1;
    std::atomic<int32_t> status = 0;
    std::atomic<int64_t> begin = 0;  // ticks of clock_
    std::atomic<int64_t> end = 0;    // 0 while in flight
  };

  void fill(Slot& slot, uint64_t number, const bp_op& op, uint64_t seq, uint64_t count, int32_t rank) {
    // Release stores order the fields after the invalidation of the number, without a fence, which TSan cannot model.
    constexpr auto kRelease = std::memory_order_release;
    slot.number.store(kNoNumber, std::memory_order_relaxed);
    slot.seq.store(seq, kRelease);
    slot.count.store(count, kRelease);
    slot.tag.store(op.tag, kRelease);
    slot.what.store(op.kind | op.dtype << 8 | op.reduce_op << 16, kRelease);
    slot.rank.store(rank, kRelease);
    slot.status.store(BP_AGAIN, kRelease);
    slot.begin.store(clock_.now(), kRelease);
    slot.end.store(0, kRelease);
    slot.number.store(number, kRelease);
  }
  std::optional<Entry> read(const Slot& slot, uint64_t number, const TickClock::Reading& now) const;

  const TickClock clock_;
  std::atomic<uint64_t> next_ = 0;
  std::atomic<uint64_t> collectives_ = 0;
  std::atomic<uint64_t> messages_ = 0;
  std::atomic<uint64_t> kept_seq_ = 0;
  Slot kept_;
  std::array<Slot, kEntries> slots_;
};

}  // namespace backplane::core
