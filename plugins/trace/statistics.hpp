// SPDX-License-Identifier: Apache-2.0
//
// Lock-free counters per kind of operation. Any thread writes, any thread reads. The fields of one snapshot may differ
// by a few operations; no field is torn.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "backplane/abi/op.h"
#include "backplane/abi/status.h"

namespace backplane::trace {

// Kinds that are counted: the operations, and calls between workers as caller and as callee.
inline constexpr uint32_t kCall = BP_OP_COUNT;
inline constexpr uint32_t kServedCall = BP_OP_COUNT + 1;
inline constexpr uint32_t kKinds = BP_OP_COUNT + 2;

// Operations of later ABI versions are counted under the last kind.
constexpr uint32_t known_kind(const bp_op& op) { return std::min<uint32_t>(op.kind, BP_OP_COUNT - 1); }

// Histogram buckets of durations in nanoseconds, eight per power of two: a quantile read from them is at most 1/8 too
// large. The last bucket holds everything from 2^42 ns (73 minutes) on.
struct Buckets {
  static constexpr size_t kCount = 8 * 41;

  static constexpr size_t index(uint64_t ns) {
    if (ns < 8) return static_cast<size_t>(ns);
    const auto exponent = static_cast<size_t>(std::bit_width(ns)) - 1;
    return std::min((exponent - 2) * 8 + (ns >> (exponent - 3) & 7), kCount - 1);
  }
  // The longest duration of a bucket, inclusive.
  static constexpr uint64_t upper(size_t index) {
    if (index < 8) return index;
    return ((UINT64_C(9) + index % 8) << (index / 8 - 1)) - 1;
  }
};

// The counters of one kind at one moment.
struct Snapshot {
  uint64_t count = 0;  // operations that ended, successfully or not
  uint64_t bytes = 0;
  uint64_t sum_ns = 0;
  uint64_t min_ns = 0;
  uint64_t max_ns = 0;
  uint64_t in_flight = 0;
  std::array<uint64_t, BP_INTERNAL + 1> failures = {};  // by status
  std::array<uint64_t, Buckets::kCount> buckets = {};

  // The duration that a fraction `share` of the operations did not exceed, 0 < share <= 1. 0 if there are no
  // operations.
  uint64_t quantile_ns(double share) const {
    const auto wanted = std::max<uint64_t>(1, static_cast<uint64_t>(share * static_cast<double>(count) + 0.999999));
    uint64_t seen = 0;
    for (size_t i = 0; i < buckets.size(); ++i) {
      seen += buckets[i];
      if (seen >= wanted) return std::min(Buckets::upper(i), max_ns);
    }
    return max_ns;
  }
  // The number of operations that took `ns` or less. Exact if `ns` is the upper bound of a bucket.
  uint64_t count_up_to(uint64_t ns) const {
    return std::accumulate(buckets.begin(), buckets.begin() + static_cast<std::ptrdiff_t>(Buckets::index(ns) + 1),
                           uint64_t{0});
  }
};

// The counters of one kind. Start and end of an operation cost a few atomic additions and no allocation.
class Counts {
 public:
  void start() { started_.fetch_add(1, std::memory_order_relaxed); }

  void end(int32_t status, uint64_t bytes, int64_t duration_ns) {
    const uint64_t ns = duration_ns > 0 ? static_cast<uint64_t>(duration_ns) : 0;
    constexpr auto kRelaxed = std::memory_order_relaxed;
    bytes_.fetch_add(bytes, kRelaxed);
    sum_ns_.fetch_add(ns, kRelaxed);
    buckets_[Buckets::index(ns)].fetch_add(1, kRelaxed);
    uint64_t known = min_ns_.load(kRelaxed);
    while (ns < known && !min_ns_.compare_exchange_weak(known, ns, kRelaxed)) continue;
    known = max_ns_.load(kRelaxed);
    while (ns > known && !max_ns_.compare_exchange_weak(known, ns, kRelaxed)) continue;
    if (status != BP_OK) failures_[static_cast<size_t>(std::clamp<int32_t>(status, 0, BP_INTERNAL))].fetch_add(1);
  }

  Snapshot snapshot() const {
    Snapshot result;
    for (size_t i = 0; i < result.buckets.size(); ++i) result.count += result.buckets[i] = buckets_[i].load();
    for (size_t i = 0; i < result.failures.size(); ++i) result.failures[i] = failures_[i].load();
    result.bytes = bytes_.load();
    result.sum_ns = sum_ns_.load();
    result.min_ns = result.count == 0 ? 0 : min_ns_.load();
    result.max_ns = max_ns_.load();
    const uint64_t started = started_.load();
    result.in_flight = started - std::min(started, result.count);
    return result;
  }

 private:
  alignas(64) std::atomic<uint64_t> started_ = 0;
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<uint64_t> sum_ns_ = 0;
  std::atomic<uint64_t> min_ns_ = UINT64_MAX;
  std::atomic<uint64_t> max_ns_ = 0;
  std::array<std::atomic<uint64_t>, BP_INTERNAL + 1> failures_ = {};
  std::array<std::atomic<uint64_t>, Buckets::kCount> buckets_ = {};
};

using Statistics = std::array<Counts, kKinds>;

}  // namespace backplane::trace
