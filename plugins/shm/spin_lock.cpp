// SPDX-License-Identifier: Apache-2.0
#include "spin_lock.hpp"

#include <sched.h>
#include <time.h>

#include "progress.hpp"

namespace backplane::shm {
namespace {

constexpr int kPolls = 100;
constexpr int kYields = 100;  // afterwards sleep: yielding would starve a holder of lower priority
constexpr timespec kSleep = {0, 50'000};

}  // namespace

void SpinLock::wait() noexcept {
  waiters_.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; !try_lock(); ++i) {
    if (i < kPolls) {
      relax();
    } else if (i < kPolls + kYields) {
      ::sched_yield();
    } else {
      ::nanosleep(&kSleep, nullptr);
    }
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace backplane::shm
