// SPDX-License-Identifier: Apache-2.0
//
// The failure of a group.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>

#include "backplane/base/deadline.hpp"
#include "backplane/sdk/sdk.hpp"

namespace backplane::gloo {

using Clock = std::chrono::steady_clock;

// The interval at which blocked calls check for failures and aborts, which cannot wake them.
inline constexpr std::chrono::milliseconds kCheckInterval{50};

// The reason why a group failed: the first cause on this rank, until the host gives another one by an abort.
// Thread-safe.
class FirstFailure {
 public:
  bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }

  // Only the first call has an effect.
  void raise(const sdk::Failure& why) noexcept {
    const std::lock_guard lock(mutex_);
    if (cause_) return;
    cause_.emplace(why);
    raised_.store(true, std::memory_order_release);
  }

  // The host's cause takes precedence: the rank whose connection ended first may itself be a victim of another failure.
  void set_host_cause(const sdk::Failure& why) noexcept {
    const std::lock_guard lock(mutex_);
    if (host_cause_) return;
    host_cause_.emplace(why);
    raised_.store(true, std::memory_order_release);
  }

  // Throws the cause if the group has failed.
  void check() const {
    if (!raised()) return;
    const std::lock_guard lock(mutex_);
    throw sdk::Failure(host_cause_ ? *host_cause_ : *cause_);
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> raised_ = false;
  std::optional<sdk::Failure> cause_;       // never changed: other threads may read copies that share its text
  std::optional<sdk::Failure> host_cause_;  // given by the host
};

// Conditions that end every wait of a group.
struct Health {
  explicit Health(const sdk::Host& host_table) : host(host_table) {}

  void check() const {
    failure.check();
    if (host.abort_requested()) throw sdk::Failure(BP_CANCELLED, "the group is being aborted");
  }

  const sdk::Host host;
  FirstFailure failure;
};

}  // namespace backplane::gloo
