// SPDX-License-Identifier: Apache-2.0
//
// Detects lost ranks over a backend that does not name them when a receive from any source fails. For each watched rank
// it posts a sentinel: the receive of a message that is never sent, which fails when the rank is lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "receive.hpp"

namespace backplane::matching {

class LossDetector {
 public:
  using Clock = std::chrono::steady_clock;

  // `tag`: of no message.
  LossDetector(const sdk::Inner& inner, int32_t rank, int32_t world_size, uint64_t tag)
      : inner_(inner), rank_(rank), world_size_(world_size), tag_(tag) {}

  // Any thread. Returns false if the rank is watched already.
  bool watch(int32_t peer);

  // The functions below are for one thread.

  // Polls the sentinels, from time to time.
  void check(Clock::time_point now);
  // A loss that was detected otherwise. BP_ANY_SOURCE: of all peers.
  void note(int32_t peer, const sdk::Failure& why);
  // The lost ranks that were not returned before, with the reason.
  std::map<int32_t, sdk::Failure> take();
  bool was_taken(int32_t peer) const { return taken_.contains(peer); }
  // Appends the sentinels in flight.
  void add_works(std::vector<sdk::Work*>& works) const;

 private:
  const sdk::Inner& inner_;
  const int32_t rank_;
  const int32_t world_size_;
  const uint64_t tag_;
  std::list<PersistentReceive> sentinels_;
  Clock::time_point next_check_;
  std::map<int32_t, sdk::Failure> lost_;
  std::set<int32_t> taken_;
  std::mutex mutex_;  // guards the fields below
  std::set<int32_t> watched_;
  std::vector<int32_t> added_;  // of these, ranks without a sentinel yet
};

}  // namespace backplane::matching
