// SPDX-License-Identifier: Apache-2.0
//
// The calls that have ended of late, for the flight recorder: those that this worker made, and those that it served. A
// layer of the group in which the workers met may hear of each.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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
  uint64_t request_bytes = 0;
  uint64_t answer_bytes = 0;
};

inline int64_t nanoseconds(Deadline::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// The rank of each worker in a group with these members; -1: it is not in it. All by their ranks in the job.
inline std::vector<int32_t> ranks_among(const std::vector<int32_t>& workers, const std::vector<int32_t>& members) {
  std::vector<int32_t> ranks;
  for (const int32_t worker : workers) {
    const auto found = std::find(members.begin(), members.end(), worker);
    ranks.push_back(found == members.end() ? -1 : static_cast<int32_t>(found - members.begin()));
  }
  return ranks;
}

class Record {
 public:
  // Whose layers hear of calls from now on. `workers`: their ranks in the job; those that are not in the group are
  // dead.
  void show_to(Group* group, const std::vector<int32_t>& workers) {
    const std::lock_guard lock(mutex_);
    group_ = group->has_layers() ? group->weak_from_this() : std::weak_ptr<Group>();
    ranks_ = ranks_among(workers, group->config().global_ranks);
    shows_ = group->has_layers();
  }
  // Words about references are not kept.
  void add(EndedCall call) {
    if (call.kind != Kind::kCall && call.kind != Kind::kRemote && call.kind != Kind::kFetch) return;
    if (shows_) show(call);
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
    int32_t peer = -1;
    {
      const std::lock_guard lock(mutex_);
      weak = group_;
      if (!ranks_.empty()) peer = ranks_[static_cast<size_t>(call.peer)];
    }
    const std::shared_ptr<Group> group = weak.lock();
    if (!group || peer < 0) return;
    group->show_call({sizeof(bp_call), peer, call.served ? 1U : 0U, call.status, call.number, nanoseconds(call.begun),
                      nanoseconds(call.ended), call.function.c_str(), call.request_bytes, call.answer_bytes});
  }

  std::atomic<bool> shows_ = false;  // to layers
  mutable std::mutex mutex_;         // guards what follows
  std::weak_ptr<Group> group_;
  std::vector<int32_t> ranks_;  // of the workers, in it
  std::deque<EndedCall> calls_;
};

}  // namespace backplane::core::rpc
