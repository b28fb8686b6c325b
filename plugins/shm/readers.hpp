// SPDX-License-Identifier: Apache-2.0
//
// Which ranks can read the processes of all others, and how long each way of moving data took them, as announced in
// collectives (zero_copy.hpp). A rank that can read is one for the life of the group. Used by one collective at a time.
#pragma once

#include <algorithm>
#include <vector>

#include "copy_tuner.hpp"

namespace backplane::shm {

class Readers {
 public:
  explicit Readers(int32_t world_size) : ranks_(static_cast<size_t>(world_size)) {}

  // A collective begins. `to_all`: each rank hears from every other.
  void begin(bool to_all) {
    to_all_ = to_all;
    for (State& each : ranks_) each.times = {};
  }
  // A rank, which may be this one, announces whether it can read all processes, and its times.
  void learn(int32_t rank, bool can_read, const CopyTuner::Best& times) {
    State& state = ranks_[static_cast<size_t>(rank)];
    state.times = times;
    state.can_read = state.can_read || can_read;
    state.is_known_to_all = state.is_known_to_all || (can_read && to_all_);
  }

  bool is_one(int32_t rank) const { return ranks_[static_cast<size_t>(rank)].can_read; }
  // Whether all ranks have announced that they can read. knows_all counts all announcements that this rank has
  // received. all_know counts only those of collectives in which each rank heard from every other, so it is equal on
  // all ranks.
  bool knows_all() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const State& each) { return each.can_read; });
  }
  bool all_know() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const State& each) { return each.is_known_to_all; });
  }
  // The extremes of the announced times of each way; 0 if none was announced.
  CopyTuner::Best shortest_times() const {
    CopyTuner::Best shortest = {};
    for (const State& each : ranks_) {
      for (size_t way = 0; way < shortest.size(); ++way) {
        if (shortest[way] == 0 || (each.times[way] > 0 && each.times[way] < shortest[way]))
          shortest[way] = each.times[way];
      }
    }
    return shortest;
  }
  CopyTuner::Best longest_times() const {
    CopyTuner::Best longest = {};
    for (const State& each : ranks_) {
      for (size_t way = 0; way < longest.size(); ++way) longest[way] = std::max(longest[way], each.times[way]);
    }
    return longest;
  }

 private:
  struct State {
    CopyTuner::Best times = {};
    bool can_read = false;
    bool is_known_to_all = false;
  };

  std::vector<State> ranks_;
  bool to_all_ = false;
};

}  // namespace backplane::shm
