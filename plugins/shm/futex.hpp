// SPDX-License-Identifier: Apache-2.0
//
// The futex call on a word that processes share.
#pragma once

#include <atomic>
#include <cstdint>

#include "layout.hpp"

namespace backplane::shm {

// Sleeps while the word has this value, until somebody wakes its sleepers, a signal comes, or the time is over
// (nanoseconds on CLOCK_MONOTONIC).
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t timeout_ns) noexcept;
void futex_wake_all(std::atomic<uint32_t>& word) noexcept;

// Makes what was written before visible, for whoever polls `word`, and for sleepers if ring follows. `lightly`:
// sleepers see to the fence (Peers::publishes_lightly).
inline void publish(std::atomic<uint32_t>& word, uint32_t value, bool lightly) noexcept {
  if (lightly) {
    word.store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    word.store(value);
  }
}

// Between plain reads and writes of another process's memory and the flag that judges them. The standard library's
// fence is one that ThreadSanitizer's builds refuse.
inline void full_fence() noexcept { __sync_synchronize(); }

// To be called after publishing: a sleeper has counted itself before it looked the last time, so that either it has
// seen what was published, or it is seen here.
inline void ring(Bell& bell) noexcept {
  if (bell.sleepers.load() == 0) return;
  bell.rings.fetch_add(1);
  futex_wake_all(bell.rings);
}

}  // namespace backplane::shm
