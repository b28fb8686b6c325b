// SPDX-License-Identifier: Apache-2.0
//
// The end of a group: why, and whether everything on the device has been stopped.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "backplane/sdk/failure.hpp"

namespace backplane::nccl {

// Any thread.
class Fate {
 public:
  static constexpr int64_t kPatience = 400'000'000;  // nanoseconds; abort has 500 ms until all is terminal

  // `wake`: has the poller stop the device. Called by decide.
  explicit Fate(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Only the first one counts. False: it was decided before.
  bool decide(const sdk::Failure& why);
  // An abort: what the core says counts more than what this rank met first, since a peer whose connection ended may
  // only have followed another one. Only the first of these counts.
  void overrule(const sdk::Failure& why);
  bool decided() const { return decided_.load(std::memory_order_acquire); }
  sdk::Failure why() const;
  void throw_if_decided() const;

  // The device touches no buffer any more.
  void settle();
  // For when it is decided: waits up to timeout_ns (BP_NO_TIMEOUT: as long as it takes) until it is settled, or
  // kPatience is over since the decision: a library that does not stop must not hold up the program. False: neither.
  bool await_settled(int64_t timeout_ns) const;

 private:
  bool set(const sdk::Failure& why, bool overrules);

  const std::function<void()> wake_;
  std::atomic<bool> decided_ = false;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<sdk::Failure> why_;      // stays: others may still read copies, which share its text
  std::optional<sdk::Failure> verdict_;  // the core's
  std::chrono::steady_clock::time_point patient_until_;
  bool settled_ = false;
};

}  // namespace backplane::nccl
