// SPDX-License-Identifier: Apache-2.0
//
// Programs repeat their collectives, so the last one's schedule is kept: writing it takes longer than running it where
// there is little to send.
#pragma once

#include "schedule/schedule.hpp"

namespace backplane::core {

// For one rank of one group: Problem::rank and world_size are always the same. Not thread-safe.
class Planner {
 public:
  // The best algorithm's schedule, the last one if nothing that it depends on is different. Valid until the next call.
  const Schedule& schedule(const Problem& problem);
  // Forgets a schedule that takes much memory.
  void trim();

 private:
  bool repeats(const Problem& problem) const;

  bool known_ = false;  // is the schedule that of the problem?
  Problem problem_;
  Schedule schedule_;
};

}  // namespace backplane::core
