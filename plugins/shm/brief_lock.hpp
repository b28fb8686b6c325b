// SPDX-License-Identifier: Apache-2.0
//
// A lock for what is held shortly, and often just after something was written for another processor. To let go is a
// plain store. A std::mutex would be let go by an instruction that waits until everything written before is visible,
// and so until the other processor has given up its cache line: 100 ns for each message. The price is that nobody can
// be woken: who finds it taken polls, then yields, then sleeps for moments.
#pragma once

#include <atomic>
#include <cstdint>

namespace backplane::shm {

class BriefLock {
 public:
  bool try_lock() noexcept {
    return !held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire);
  }
  void lock() noexcept {
    if (!try_lock()) wait();
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

  // Does a thread wait in lock()? Who holds it for longer than a moment lets go then.
  bool is_wanted() const noexcept { return waiters_.load(std::memory_order_relaxed) > 0; }

 private:
  void wait() noexcept;

  std::atomic<bool> held_ = false;
  std::atomic<uint32_t> waiters_ = 0;
};

}  // namespace backplane::shm
