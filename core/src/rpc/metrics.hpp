// SPDX-License-Identifier: Apache-2.0
//
// What a worker counts. Durations go into histograms by powers of two, from one microsecond on.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace backplane::core::rpc {

class Histogram {
 public:
  static constexpr size_t kBuckets = 28;  // bucket b: below 2^b us, and not in b - 1; the last one takes the rest

  void add(int64_t ns) {
    size_t bucket = 0;
    for (int64_t us = ns / 1000; us > 0 && bucket + 1 < kBuckets; us /= 2) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(static_cast<uint64_t>(ns < 0 ? 0 : ns), std::memory_order_relaxed);
  }
  uint64_t count(size_t bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }
  uint64_t sum_ns() const { return sum_ns_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, kBuckets> counts_ = {};
  std::atomic<uint64_t> sum_ns_ = 0;
};

struct PeerMetrics {
  std::atomic<uint64_t> calls_sent = 0;
  std::atomic<uint64_t> calls_received = 0;
  std::atomic<uint64_t> last_call = 0;  // the highest number of what it asked for
  std::atomic<uint64_t> bytes_sent = 0;
  std::atomic<uint64_t> bytes_received = 0;
  std::atomic<uint64_t> errors = 0;  // calls to it that failed, timeouts among them
  std::atomic<uint64_t> timeouts = 0;
  Histogram round_trips;  // of calls to it that ended well
  Histogram run_times;    // of functions that it called here
};

struct Metrics {
  explicit Metrics(size_t workers) : peers(workers) {}
  std::deque<PeerMetrics> peers;
  std::atomic<uint64_t> refs = 0;         // references that are held here
  std::atomic<uint64_t> unconfirmed = 0;  // those of them of which the owner has not said yet that it has the value
};

}  // namespace backplane::core::rpc
