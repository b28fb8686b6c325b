// SPDX-License-Identifier: Apache-2.0
#include "losses.hpp"

#include <iterator>
#include <utility>

namespace backplane::matching {
namespace {

constexpr std::chrono::milliseconds kSentinelInterval{50};

}  // namespace

bool LossDetector::watch(int32_t peer) {
  const std::lock_guard lock(mutex_);
  if (!watched_.insert(peer).second) return false;
  added_.push_back(peer);
  return true;
}

void LossDetector::check(Clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    if (!added_.empty()) next_check_ = {};
    for (const int32_t peer : added_) sentinels_.emplace_back(inner_, peer, tag_, 1);
    added_.clear();
  }
  if (sentinels_.empty() || now < next_check_) return;
  next_check_ = now + kSentinelInterval;
  for (auto each = sentinels_.begin(); each != sentinels_.end();) {
    const bool has_ended = each->poll() == PersistentReceive::Outcome::kEnded;
    if (has_ended) note(each->peer(), *each->failure());
    each = has_ended ? sentinels_.erase(each) : std::next(each);
  }
}

void LossDetector::note(int32_t peer, const sdk::Failure& why) {
  const int32_t first = peer == BP_ANY_SOURCE ? 0 : peer;
  const int32_t last = peer == BP_ANY_SOURCE ? world_size_ - 1 : peer;
  for (int32_t each = first; each <= last; ++each) {
    if (each != rank_ && !was_taken(each)) lost_.emplace(each, why);
  }
}

std::map<int32_t, sdk::Failure> LossDetector::take() {
  for (const auto& [peer, why] : lost_) taken_.insert(peer);
  return std::exchange(lost_, {});
}

void LossDetector::add_works(std::vector<sdk::Work*>& works) const {
  for (const PersistentReceive& sentinel : sentinels_) works.push_back(sentinel.work());
}

}  // namespace backplane::matching
