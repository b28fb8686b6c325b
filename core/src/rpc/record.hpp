// SPDX-License-Identifier: Apache-2.0
//
// The calls that have ended of late, for the flight recorder: those that this worker made, and those that it served.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "deadline.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

struct EndedCall {
  bool served = false;  // for `peer`; or else made, to it
  int32_t peer = -1;
  uint64_t number = 0;
  Kind kind = Kind::kCall;
  std::string function;
  Deadline::Clock::time_point begun;
  Deadline::Clock::time_point ended;
  int32_t status = 0;
};

class Record {
 public:
  // Words about references are not kept.
  void add(EndedCall call) {
    if (call.kind != Kind::kCall && call.kind != Kind::kRemote && call.kind != Kind::kFetch) return;
    EndedCall gone;  // its text is freed without the lock
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    if (calls_.size() <= kMost) return;
    gone = std::move(calls_.front());
    calls_.pop_front();
  }
  std::deque<EndedCall> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  static constexpr size_t kMost = 512;

  mutable std::mutex mutex_;
  std::deque<EndedCall> calls_;
};

}  // namespace backplane::core::rpc
