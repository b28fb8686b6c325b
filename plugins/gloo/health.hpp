// SPDX-License-Identifier: Apache-2.0
//
// The conditions that end every wait of a group: its failure, and an abort by the host.
#pragma once

#include <chrono>
#include <string>

#include "backplane/base/deadline.hpp"
#include "backplane/sdk/first_failure.hpp"
#include "backplane/sdk/sdk.hpp"

namespace backplane::gloo {

using Clock = std::chrono::steady_clock;

// The interval at which blocked calls check for failures and aborts, which cannot wake them.
inline constexpr std::chrono::milliseconds kCheckInterval{50};

// gloo cannot distinguish the end of a process from an orderly leave.
inline sdk::Failure connection_lost(int32_t rank, const std::string& detail) {
  return sdk::peer_lost(rank, "its connection has closed (" + detail + ")");
}

struct Health {
  explicit Health(const sdk::Host& host_table) : host(host_table) {}

  void check() const {
    failure.check();
    if (host.abort_requested()) throw sdk::Failure(BP_CANCELLED, "the group is being aborted");
  }

  const sdk::Host host;
  sdk::FirstFailure failure;
};

}  // namespace backplane::gloo
