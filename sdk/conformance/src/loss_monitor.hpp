// SPDX-License-Identifier: Apache-2.0
//
// The part of the core that a case needs when ranks die: a thread that aborts agents when the supervisor reports the
// loss of a rank.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "agent.hpp"
#include "machine_time.hpp"

namespace backplane::conformance {

class LossMonitor {
 public:
  // `self`: this rank, whose own loss it ignores.
  LossMonitor(World& world, int32_t self) : world_(world), self_(self) {}
  ~LossMonitor();
  LossMonitor(const LossMonitor&) = delete;
  LossMonitor& operator=(const LossMonitor&) = delete;

  // Until the agent is closed, the loss of a rank aborts it with BP_PEER_LOST, naming that rank.
  void guard(Agent& agent);
  // Forgets all agents, which may then end.
  void release();
  // Runs since just before the first abort; empty before it.
  std::optional<Stopwatch> first_abort() const;

 private:
  void watch();
  int32_t lost_rank() const;  // -1: none

  World& world_;
  const int32_t self_;
  mutable std::mutex mutex_;
  std::vector<Agent*> guarded_;
  std::optional<Stopwatch> first_abort_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;  // from the first agent on
};

}  // namespace backplane::conformance
