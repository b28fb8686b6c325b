// SPDX-License-Identifier: Apache-2.0
//
// A bounded ring of the latest operations of a group and calls of its worker. The oldest are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace backplane::trace {

struct Event {
  int64_t begin_ns = 0;  // CLOCK_MONOTONIC
  int64_t end_ns = 0;
  uint64_t seq = 0;           // calls: the call number
  uint64_t bytes = 0;         // calls: size of the request
  uint64_t answer_bytes = 0;  // calls only
  uint32_t kind = 0;          // of the operation, or kCall, kServedCall
  uint32_t dtype = 0;         // calls: number of the function
  int32_t other = -1;         // root or peer
  int32_t status = 0;
};

// Thread-safe.
class Events {
 public:
  // Allocates memory as events are added, up to `limit` events of 56 bytes.
  explicit Events(size_t limit) : limit_(limit) {}

  void add(const Event& event) {
    const std::lock_guard lock(mutex_);
    if (ring_.size() < limit_) {
      ring_.push_back(event);
    } else {
      ring_[next_] = event;
      next_ = next_ + 1 == limit_ ? 0 : next_ + 1;
      ++forgotten_;
    }
  }

  // Returns the events in the order in which they ended. Sets *forgotten to the number of dropped events.
  std::vector<Event> all(uint64_t* forgotten) const {
    const std::lock_guard lock(mutex_);
    const auto oldest = ring_.begin() + static_cast<std::ptrdiff_t>(next_);
    std::vector<Event> result(oldest, ring_.end());
    result.insert(result.end(), ring_.begin(), oldest);
    *forgotten = forgotten_;
    return result;
  }

 private:
  const size_t limit_;  // at least 1
  mutable std::mutex mutex_;
  std::vector<Event> ring_;
  size_t next_ = 0;  // index of the oldest once the ring is full
  uint64_t forgotten_ = 0;
};

}  // namespace backplane::trace
