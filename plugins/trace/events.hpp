// SPDX-License-Identifier: Apache-2.0
//
// The last operations of a group, and calls of its workers, for a trace. Bounded: the oldest are forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace backplane::trace {

struct Event {
  int64_t begin_ns = 0;  // CLOCK_MONOTONIC
  int64_t end_ns = 0;
  uint64_t seq = 0;           // of a call: its number
  uint64_t bytes = 0;         // of a call: the request's
  uint64_t answer_bytes = 0;  // of a call
  uint32_t kind = 0;          // that of the operation, or of statistics.hpp
  uint32_t dtype = 0;         // of a call: its function's number
  int32_t other = -1;         // root or peer
  int32_t status = 0;
};

// Any thread.
class Events {
 public:
  // Memory is taken as events come, up to `limit` of them (56 bytes each).
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

  // In the order in which they ended, and how many are no longer there.
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
  size_t next_ = 0;  // the oldest, once the ring is full
  uint64_t forgotten_ = 0;
};

}  // namespace backplane::trace
