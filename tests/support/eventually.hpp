// SPDX-License-Identifier: Apache-2.0
//
// Waits with a limit, so that a test fails with an error instead of at the time limit of CTest.
#pragma once

#include <chrono>
#include <future>
#include <thread>

namespace backplane::test {

inline constexpr std::chrono::seconds kWaitLimit{60};

// Waits until `condition` returns true. Returns false after kWaitLimit.
template <typename Condition>
bool eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kWaitLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Waits for the value of a future. Returns false after kWaitLimit.
template <typename Future>
bool in_time(const Future& future) {
  return future.wait_for(kWaitLimit) == std::future_status::ready;
}

}  // namespace backplane::test
