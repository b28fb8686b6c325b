// SPDX-License-Identifier: Apache-2.0
//
// A lock for short critical sections, often right after writing to another processor's cache line. Unlocking is a plain
// store. The atomic exchange in std::mutex::unlock would wait until all earlier writes are visible, 100 ns per message.
// In return waiters cannot be woken: they poll, then yield, then sleep briefly.
#pragma once

#include <atomic>
#include <cstdint>

namespace backplane::shm {

class SpinLock {
 public:
  bool try_lock() noexcept {
    return !locked_.load(std::memory_order_relaxed) && !locked_.exchange(true, std::memory_order_acquire);
  }
  void lock() noexcept {
    if (!try_lock()) wait();
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

  // Whether a thread waits in lock(). Long holders should release it then.
  bool is_contended() const noexcept { return waiters_.load(std::memory_order_relaxed) > 0; }

 private:
  void wait() noexcept;

  std::atomic<bool> locked_ = false;
  std::atomic<uint32_t> waiters_ = 0;
};

}  // namespace backplane::shm
