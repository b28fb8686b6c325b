// SPDX-License-Identifier: Apache-2.0
//
// The peers that have left the group in order or are lost. Used by the poller's thread, except first_lost.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "backplane/sdk/sdk.hpp"

namespace backplane::nccl {

class Departures {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Departures(int32_t world_size) : said_goodbye_(static_cast<size_t>(world_size)) {}

  void note_goodbye(int32_t peer) { said_goodbye_[static_cast<size_t>(peer)] = true; }
  // The connection has ended.
  void note_disconnect(int32_t peer);

  // The failure of operations that need the peer.
  sdk::Failure loss_of(int32_t peer) const;
  // How long operations that need the peer may still complete.
  std::chrono::nanoseconds grace_of(int32_t peer) const;
  // The first peer that disconnected without a goodbye, -1 if there is none. Any thread.
  int32_t first_lost() const { return first_lost_.load(); }
  bool any_disconnected() const { return !disconnected_.empty(); }
  // A disconnected peer whose grace is over for a collective that has waited since then.
  std::optional<int32_t> overdue(Clock::time_point since) const;

 private:
  std::vector<bool> said_goodbye_;                     // by rank
  std::map<int32_t, Clock::time_point> disconnected_;  // peers, and when their connection ended
  std::atomic<int32_t> first_lost_ = -1;
};

// The failure of operations with a peer that has left in order, or was lost.
sdk::Failure lost_peer(int32_t peer, bool left_in_order);

}  // namespace backplane::nccl
