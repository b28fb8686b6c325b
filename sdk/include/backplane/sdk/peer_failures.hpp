// SPDX-License-Identifier: Apache-2.0
//
// Failures that all backends report with the same text.
#pragma once

#include <cstdint>
#include <string>

#include "backplane/abi/op.h"
#include "failure.hpp"
#include "layer.hpp"

namespace backplane::sdk {

// BP_PEER_LOST: "rank 3 is lost: its process ended". `why`: the evidence.
inline Failure peer_lost(int32_t rank, const std::string& why) {
  return {BP_PEER_LOST, "rank " + std::to_string(rank) + " is lost: " + why, rank};
}

// BP_PEER_LOST: "rank 3 has left the group", and its reason if it gave one.
inline Failure peer_left(int32_t rank, const std::string& reason = "") {
  return {BP_PEER_LOST, "rank " + std::to_string(rank) + " has left the group" + (reason.empty() ? "" : ": ") + reason,
          rank};
}

// BP_TIMEOUT of init: "rank 3 has not joined the group: the timeout of init has passed".
inline Failure not_joined(int32_t rank, const std::string& why) {
  return {BP_TIMEOUT, "rank " + std::to_string(rank) + " has not joined the group: " + why, rank};
}

// "all_reduce #41", "send to rank 1 with tag 2".
inline std::string describe(const bp_op& op) {
  if (op.kind != BP_SEND && op.kind != BP_RECV) return std::string(op_name(op.kind)) + " #" + std::to_string(op.seq);
  return (op.kind == BP_SEND ? "send to " : "recv from ") +
         (op.peer == BP_ANY_SOURCE ? "any rank" : "rank " + std::to_string(op.peer)) +
         (op.tag == BP_ANY_TAG ? " with any tag" : " with tag " + std::to_string(op.tag));
}

// BP_TIMEOUT: "send to rank 1 with tag 2 did not end within 500 ms".
inline Failure timed_out(const bp_op& op) {
  return {BP_TIMEOUT, describe(op) + " did not end within " + std::to_string(op.timeout_ns / 1'000'000) + " ms",
          op.peer};
}

}  // namespace backplane::sdk
