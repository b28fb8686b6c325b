// SPDX-License-Identifier: Apache-2.0
//
// Checks that survivors of a death make, independent of how the rank died.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "process_traffic.hpp"
#include "rank.hpp"

namespace backplane::conformance {

// The ranks that die in a case, and what the survivors must observe.
class Deaths {
 public:
  Deaths(Rank& rank, std::vector<int32_t> victims);

  bool doomed() const { return is_victim(rank_.id()); }
  bool is_victim(int32_t rank) const;
  const std::vector<int32_t>& survivors() const { return survivors_; }
  // Another survivor, or a victim if there is none.
  int32_t companion() const;

  // A barrier of the survivors.
  void barrier(const std::string& where);
  // Survivors report that they are ready. A victim waits for all of them.
  void ready();
  void await_ready();

  // An operation of a guarded agent that could not succeed has just ended: with BP_PEER_LOST, and at most 2 s (scaled)
  // after the monitor has aborted the agent because a victim died. If `named`, the error names a victim.
  void expect_out(const Outcome& outcome, const std::string& what, bool named);
  // Waits until the harness has marked all victims as lost.
  void await_loss();
  // Call on all survivors. The agent must be broken, name a victim and end quickly, and a new group of the survivors
  // must work.
  void carry_on(std::unique_ptr<Agent> agent);
  // The last part of carry_on: a new group of the survivors.
  void regroup();

 private:
  bool names_victim(const Outcome& outcome) const;

  Rank& rank_;
  const std::vector<int32_t> victims_;
  std::vector<int32_t> survivors_;
};

// Closes the agent. Records a finding unless that ends within five seconds (scaled). The ABI allows "at most a few".
void close_quickly(Rank& rank, std::unique_ptr<Agent> agent);

// Waits until an operation ends, with any result. If it does not end within `timeout`, aborts the agent; the operation
// must then end within half a second (scaled).
void end_somehow(Rank& rank, Agent& agent, Pending& pending, Nanoseconds timeout, const std::string& what);

}  // namespace backplane::conformance
