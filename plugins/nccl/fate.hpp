// SPDX-License-Identifier: Apache-2.0
//
// The end of a group: why, and whether everything on the device has been stopped.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "backplane/sdk/failure.hpp"

namespace backplane::nccl {

// Any thread.
class Fate {
 public:
  static constexpr int64_t kPatience = 400'000'000;  // nanoseconds; abort has 500 ms until all is terminal

  // Only the first one counts. False: it was decided before.
  bool decide(const sdk::Failure& why);
  bool decided() const { return decided_.load(std::memory_order_acquire); }
  sdk::Failure why() const;
  void throw_if_decided() const;

  // The device touches no buffer any more.
  void settle();
  // Waits for that, no longer than kPatience: a library that does not stop must not hold up the program.
  void await_settled() const;

 private:
  std::atomic<bool> decided_ = false;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<sdk::Failure> why_;
  bool settled_ = false;
};

}  // namespace backplane::nccl
