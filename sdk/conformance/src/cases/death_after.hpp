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
  // `notice`: how long it takes until a death counts as one (a stopped process), scaled by the caller.
  Deaths(Rank& rank, std::vector<int32_t> victims, Nanoseconds notice = 0);

  bool doomed() const { return is_victim(rank_.id()); }
  bool is_victim(int32_t rank) const;
  const std::vector<int32_t>& survivors() const { return survivors_; }
  // Another survivor, or a victim if there is none.
  int32_t companion() const;

  // A barrier of the survivors.
  void barrier(const std::string& where);
  // A victim waits until all survivors have said that they are ready.
  void ready();
  void await_ready();
  // Called by a victim just before it dies; starts the clock.
  void tell_time();

  // The time since the deaths. Survivors must return within 2 s (scaled).
  Nanoseconds since();
  // An operation that could not succeed has ended in time, with BP_PEER_LOST. If `named`, the error tells who.
  void expect_out(const Outcome& outcome, const std::string& what, bool named);
  // Waits until the harness's liveness has marked all victims.
  void await_loss();
  // To be called by all survivors: the agent is broken and names a victim, ends quickly, and a new group of the
  // survivors works.
  void carry_on(std::unique_ptr<Agent> agent);
  // The last part of it.
  void regroup();

 private:
  bool names_victim(const Outcome& outcome) const;

  Rank& rank_;
  const std::vector<int32_t> victims_;
  const Nanoseconds notice_;
  std::vector<int32_t> survivors_;
};

// The agent ends within five seconds (scaled): "at most a few" is what the ABI allows.
void close_quickly(Rank& rank, std::unique_ptr<Agent> agent);

// Waits for the end of an operation, whatever it may be. If it does not come within `timeout` the agent is aborted;
// half a second (scaled) later it must be over.
void end_somehow(Rank& rank, Agent& agent, Pending& pending, Nanoseconds timeout, const std::string& what);

}  // namespace backplane::conformance
