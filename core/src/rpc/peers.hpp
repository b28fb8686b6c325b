// SPDX-License-Identifier: Apache-2.0
//
// The workers by rank and name, and those that have left or died. The directory is constant; a mutex of its own guards
// the departures.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "error.hpp"

namespace backplane::core::rpc {

class Peers {
 public:
  // `max_message_bytes`: of each worker.
  Peers(int32_t own_rank, std::vector<std::string> names, std::vector<uint64_t> max_message_bytes)
      : own_rank_(own_rank), names_(std::move(names)), max_message_bytes_(std::move(max_message_bytes)) {
    for (const std::string& name : names_) ranks_.emplace(name, static_cast<int32_t>(ranks_.size()));
  }

  int32_t own_rank() const { return own_rank_; }
  int32_t size() const { return static_cast<int32_t>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& name(int32_t rank) const { return names_[static_cast<size_t>(rank)]; }
  const std::string& own_name() const { return name(own_rank_); }
  // "worker 'b' (rank 1)"
  std::string describe(int32_t rank) const { return fmt::format("worker '{}' (rank {})", name(rank), rank); }

  int32_t find(const std::string& name) const {
    const auto found = ranks_.find(name);
    if (found != ranks_.end()) return found->second;
    fail(BP_INVALID, "there is no worker '{}'; there are {}", name, fmt::join(names_, ", "));
  }
  void require_rank(int32_t rank) const {
    if (rank >= 0 && rank < size()) return;
    fail(BP_INVALID, "there is no worker of rank {}; there are {}", rank, size());
  }
  // BP_INVALID if a message of this size exceeds the limit of either side.
  void require_size(int32_t to, uint64_t bytes) const {
    for (const int32_t rank : {own_rank_, to}) {
      const uint64_t limit = max_message_bytes_[static_cast<size_t>(rank)];
      if (bytes <= limit) continue;
      fail(BP_INVALID, "the message has {} bytes, and max_message_bytes of {} allows {}", bytes, describe(rank), limit);
    }
  }

  // The first reason counts.
  void set_absent(int32_t rank, const Error& why) {
    const std::lock_guard lock(mutex_);
    absent_.emplace(rank, why);
  }
  // The reason why a worker has left or died; none if it is present.
  std::optional<Error> absence(int32_t rank) const {
    const std::lock_guard lock(mutex_);
    const auto found = absent_.find(rank);
    return found == absent_.end() ? std::nullopt : std::optional<Error>(found->second);
  }
  bool any_absent() const {
    const std::lock_guard lock(mutex_);
    return !absent_.empty();
  }

 private:
  const int32_t own_rank_;
  const std::vector<std::string> names_;
  std::unordered_map<std::string, int32_t> ranks_;
  const std::vector<uint64_t> max_message_bytes_;
  mutable std::mutex mutex_;
  std::map<int32_t, Error> absent_;
};

}  // namespace backplane::core::rpc
