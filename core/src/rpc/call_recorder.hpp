// SPDX-License-Identifier: Apache-2.0
//
// The last calls that have ended, made and served, for the flight recorder. Reports each call to the layers of the
// workers' group.
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
  bool served = false;  // a call by `peer`; otherwise a call to it
  int32_t peer = -1;
  uint64_t number = 0;
  Kind kind = Kind::kCall;
  std::string function;
  Deadline::Clock::time_point begun;
  Deadline::Clock::time_point ended;
  int32_t status = 0;
  uint64_t request_bytes = 0;
  uint64_t reply_bytes = 0;
};

inline int64_t nanoseconds(Deadline::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// The rank of each worker in a group with these members, -1 if it is no member. Workers and members are ranks in the
// job.
inline std::vector<int32_t> ranks_among(const std::vector<int32_t>& workers, const std::vector<int32_t>& members) {
  std::vector<int32_t> ranks;
  for (const int32_t worker : workers) {
    const auto found = std::find(members.begin(), members.end(), worker);
    ranks.push_back(found == members.end() ? -1 : static_cast<int32_t>(found - members.begin()));
  }
  return ranks;
}

class CallRecorder {
 public:
  // Sets the group whose layers get the calls. `workers`: their ranks in the job; those outside the group are lost.
  void set_group(Group* group, const std::vector<int32_t>& workers) {
    const std::lock_guard lock(mutex_);
    group_ = !group->config().layers.empty() ? group->weak_from_this() : std::weak_ptr<Group>();
    ranks_ = ranks_among(workers, group->config().global_ranks);
    has_layers_ = !group->config().layers.empty();
  }
  // Messages about references are not recorded.
  void add(EndedCall call) {
    if (call.kind != Kind::kCall && call.kind != Kind::kRemote && call.kind != Kind::kFetch) return;
    if (has_layers_) report_to_layers(call);
    EndedCall evicted;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    if (calls_.size() <= kCapacity) return;
    evicted = std::move(calls_.front());
    calls_.pop_front();
  }
  std::deque<EndedCall> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  static constexpr size_t kCapacity = 512;

  void report_to_layers(const EndedCall& call) const {
    std::weak_ptr<Group> weak;
    int32_t peer = -1;
    {
      const std::lock_guard lock(mutex_);
      weak = group_;
      if (!ranks_.empty()) peer = ranks_[static_cast<size_t>(call.peer)];
    }
    const std::shared_ptr<Group> group = weak.lock();
    if (!group || peer < 0) return;
    group->call_observer().ended({sizeof(bp_call), peer, call.served ? 1U : 0U, call.status, call.number,
                                  nanoseconds(call.begun), nanoseconds(call.ended), call.function.c_str(),
                                  call.request_bytes, call.reply_bytes});
  }

  std::atomic<bool> has_layers_ = false;
  mutable std::mutex mutex_;  // guards the fields below
  std::weak_ptr<Group> group_;
  std::vector<int32_t> ranks_;  // of the workers, in the group
  std::deque<EndedCall> calls_;
};

}  // namespace backplane::core::rpc
