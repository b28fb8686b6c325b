// SPDX-License-Identifier: Apache-2.0
#include "departures.hpp"

#include <algorithm>
#include <string>

#include "backplane/base/grace.hpp"

namespace backplane::nccl {

void Departures::note_disconnect(int32_t peer) {
  disconnected_.emplace(peer, Clock::now());
  int32_t none = -1;
  if (!said_goodbye_[static_cast<size_t>(peer)]) first_lost_.compare_exchange_strong(none, peer);
}

sdk::Failure Departures::loss_of(int32_t peer) const {
  return lost_peer(peer, said_goodbye_[static_cast<size_t>(peer)]);
}

// A peer that left in order may have done its part of a collective that this rank has yet to begin. With a peer that
// died, a collective cannot complete.
std::chrono::nanoseconds Departures::grace_of(int32_t peer) const {
  return std::chrono::nanoseconds(said_goodbye_[static_cast<size_t>(peer)] ? base::grace::kOrderlyLeave
                                                                           : base::grace::kBrokenConnection);
}

std::optional<int32_t> Departures::overdue(Clock::time_point since) const {
  const auto now = Clock::now();
  for (const auto& [peer, disconnected_at] : disconnected_) {
    if (now > std::max(disconnected_at, since) + grace_of(peer)) return peer;
  }
  return std::nullopt;
}

sdk::Failure lost_peer(int32_t peer, bool left_in_order) {
  return {BP_PEER_LOST,
          "nccl: rank " + std::to_string(peer) +
              (left_in_order ? " has left the group" : " is lost: its connection ended without a goodbye"),
          peer};
}

}  // namespace backplane::nccl
