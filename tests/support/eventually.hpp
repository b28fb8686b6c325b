// SPDX-License-Identifier: Apache-2.0
//
// Waits that end: what a test waits for comes, or the test fails with a sentence instead of with the runner's limit.
#pragma once

#include <chrono>
#include <future>
#include <thread>

namespace backplane::test {

inline constexpr std::chrono::seconds kPatience{60};

// Waits until `holds` returns true. False if it does not in kPatience.
template <typename Condition>
bool eventually(const Condition& holds) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Waits for the value of a future. False if it does not come in kPatience.
template <typename T>
bool in_time(const std::future<T>& future) {
  return future.wait_for(kPatience) == std::future_status::ready;
}

}  // namespace backplane::test
