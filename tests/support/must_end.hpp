// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

namespace backplane::test {

// Runs `body` on a separate thread. If it does not return in time, reports that `what` hangs and ends the program: a
// hanging thread cannot be joined, and cannot be detached because it refers to the caller's variables.
inline void must_end(const std::string& what, const std::function<void()>& body,
                     std::chrono::seconds limit = std::chrono::minutes(1)) {
  std::packaged_task<void()> task(body);
  std::future<void> end = task.get_future();
  std::thread thread(std::move(task));
  if (end.wait_for(limit) != std::future_status::ready) {
    ADD_FAILURE() << what << " has not ended within " << limit.count() << " s";
    std::fflush(nullptr);
    std::_Exit(EXIT_FAILURE);
  }
  thread.join();
  end.get();
}

}  // namespace backplane::test
