// SPDX-License-Identifier: Apache-2.0
//
// Futex operations on words shared between processes.
#pragma once

#include <atomic>
#include <cstdint>

#include "layout.hpp"

namespace backplane::shm {

// Sleeps while the word has this value, until it is woken, a signal arrives, or the timeout expires (nanoseconds on
// CLOCK_MONOTONIC).
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t timeout_ns) noexcept;
void futex_wake_all(std::atomic<uint32_t>& word) noexcept;

// Publishes earlier writes to threads that poll `word`, and to sleepers if ring() follows. `membarrier`: sleepers
// execute the fence (Peers::uses_membarrier).
inline void publish(std::atomic<uint32_t>& word, uint32_t value, bool membarrier) noexcept {
  if (membarrier) {
    word.store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    word.store(value);
  }
}

// Orders plain accesses to another process's memory against the flag that validates them. std::atomic_thread_fence is
// not supported by ThreadSanitizer builds.
inline void full_fence() noexcept { __sync_synchronize(); }

// Call after publishing. A sleeper registers before its last check: either it sees what was published, or it is seen
// here.
inline void ring(Doorbell& doorbell) noexcept {
  if (doorbell.sleepers.load() == 0) return;
  doorbell.rings.fetch_add(1);
  futex_wake_all(doorbell.rings);
}

}  // namespace backplane::shm
