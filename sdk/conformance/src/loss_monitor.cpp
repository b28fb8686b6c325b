// SPDX-License-Identifier: Apache-2.0
#include "loss_monitor.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace backplane::conformance {

LossMonitor::~LossMonitor() {
  ended_.store(true);
  if (thread_.joinable()) thread_.join();
}

void LossMonitor::guard(Agent& agent) {
  const std::lock_guard lock(mutex_);
  guarded_.push_back(&agent);
  agent.before_close = [this, &agent] {
    const std::lock_guard locked(mutex_);
    std::erase(guarded_, &agent);
  };
  if (!thread_.joinable()) thread_ = std::thread([this] { watch(); });
}

void LossMonitor::release() {
  const std::lock_guard lock(mutex_);
  guarded_.clear();
}

std::optional<Stopwatch> LossMonitor::first_abort() const {
  const std::lock_guard lock(mutex_);
  return first_abort_;
}

int32_t LossMonitor::lost_rank() const {
  for (int32_t rank = 0; rank < world_.ranks(); ++rank) {
    if (rank != self_ && world_.state(rank) == RankState::kLost) return rank;
  }
  return -1;
}

void LossMonitor::watch() {
  std::vector<const Agent*> aborted;  // each agent is aborted once, with the first loss
  while (!ended_.load()) {
    const uint32_t seen = world_.states_version();
    if (const int32_t lost = lost_rank(); lost >= 0) {
      const std::lock_guard lock(mutex_);
      if (!first_abort_) first_abort_.emplace();
      for (Agent* agent : guarded_) {
        if (std::find(aborted.begin(), aborted.end(), agent) != aborted.end()) continue;
        agent->abort(BP_PEER_LOST, lost, fmt::format("rank {} is lost: its process ended", lost));
        aborted.push_back(agent);
      }
    }
    world_.wait_for_state_change(seen);
  }
}

}  // namespace backplane::conformance
