// SPDX-License-Identifier: Apache-2.0
//
// Counters of a worker. Histograms of durations have buckets by powers of two, from one microsecond.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace backplane::core::rpc {

class Histogram {
 public:
  static constexpr size_t kBuckets = 28;  // bucket b: [2^(b-1), 2^b) us; the last one is open

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
  std::atomic<uint64_t> last_call = 0;  // the highest number of its requests
  std::atomic<uint64_t> bytes_sent = 0;
  std::atomic<uint64_t> bytes_received = 0;
  std::atomic<uint64_t> errors = 0;  // failed calls to it, with timeouts
  std::atomic<uint64_t> timeouts = 0;
  Histogram round_trips;  // of successful calls to it
  Histogram run_times;    // of functions that it called
};

struct Metrics {
  explicit Metrics(size_t workers) : peers(workers) {}
  std::deque<PeerMetrics> peers;
  std::atomic<uint64_t> refs = 0;         // held by this worker
  std::atomic<uint64_t> unconfirmed = 0;  // of those, not yet confirmed by their owners
};

}  // namespace backplane::core::rpc
