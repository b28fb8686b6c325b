// SPDX-License-Identifier: Apache-2.0
//
// The calls that have ended of late, for the flight recorder: those that this worker made, and those that it served. A
// layer of the group in which the workers met may hear of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "deadline.hpp"
#include "group/group.hpp"
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

inline int64_t nanoseconds(Deadline::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

class Record {
 public:
  // Whose layers hear of calls from now on.
  void show_to(Group* group) {
    const std::lock_guard lock(mutex_);
    group_ = group->has_layers() ? group->weak_from_this() : std::weak_ptr<Group>();
  }
  // Words about references are not kept.
  void add(EndedCall call) {
    if (call.kind != Kind::kCall && call.kind != Kind::kRemote && call.kind != Kind::kFetch) return;
    show(call);
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

  void show(const EndedCall& call) const {
    std::weak_ptr<Group> weak;
    {
      const std::lock_guard lock(mutex_);
      weak = group_;
    }
    const std::shared_ptr<Group> group = weak.lock();
    if (!group) return;
    group->show_call({sizeof(bp_call), call.peer, call.served ? 1U : 0U, call.status, call.number,
                      nanoseconds(call.begun), nanoseconds(call.ended), call.function.c_str()});
  }

  mutable std::mutex mutex_;  // guards what follows
  std::weak_ptr<Group> group_;
  std::deque<EndedCall> calls_;
};

}  // namespace backplane::core::rpc
