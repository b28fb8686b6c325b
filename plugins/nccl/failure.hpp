// SPDX-License-Identifier: Apache-2.0
//
// The failure that ends a group, and whether the device has stopped since.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

#include "backplane/base/deadline.hpp"
#include "backplane/sdk/first_failure.hpp"

namespace backplane::nccl {

// Thread-safe.
class GroupFailure {
 public:
  // `stop_device` makes the poller stop the device. Called once, by the first set or set_by_core.
  explicit GroupFailure(std::function<void()> stop_device) : stop_device_(std::move(stop_device)) {}

  // As sdk::FirstFailure.
  bool set(const sdk::Failure& cause) { return set(cause, false); }
  void set_by_core(const sdk::Failure& cause) { set(cause, true); }
  bool is_set() const { return first_.raised(); }
  sdk::Failure cause() const { return first_.cause(); }
  void throw_if_set() const { first_.check(); }

  // The device no longer uses any buffer.
  void set_device_stopped();
  bool device_stopped() const;
  // Call only if is_set. Waits up to timeout_ns for set_device_stopped. False: the time is over. True without it once
  // base::grace::kDeviceStop has passed since the failure: a library that does not stop must not block the program.
  bool await_device_stopped(int64_t timeout_ns) const;

 private:
  bool set(const sdk::Failure& cause, bool by_core);

  const std::function<void()> stop_device_;
  sdk::FirstFailure first_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  base::Deadline stop_deadline_ = base::Deadline::never();
  bool device_stopped_ = false;
};

}  // namespace backplane::nccl
