// SPDX-License-Identifier: Apache-2.0
#include "brief_lock.hpp"

#include <sched.h>
#include <time.h>

#include "waiting.hpp"

namespace backplane::shm {
namespace {

constexpr int kPolls = 100;
constexpr int kYields = 100;  // a holder of lower priority never runs while somebody only yields
constexpr timespec kMoment = {0, 50'000};

}  // namespace

void BriefLock::wait() noexcept {
  waiters_.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; !try_lock(); ++i) {
    if (i < kPolls) {
      relax();
    } else if (i < kPolls + kYields) {
      ::sched_yield();
    } else {
      ::nanosleep(&kMoment, nullptr);
    }
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace backplane::shm
