// SPDX-License-Identifier: Apache-2.0
//
// Keeps the last schedule, because programs repeat their collectives, and making a schedule takes longer than running
// it for small data.
#pragma once

#include "schedule/schedule.hpp"

namespace backplane::core {

// For one rank of one group: rank and world_size of all specs are the same. Not thread-safe.
class ScheduleCache {
 public:
  // The schedule of the best algorithm: the last one if the spec is the same. Valid until the next call.
  const Schedule& get(const CollectiveSpec& spec);
  // Drops a schedule that takes much memory.
  void trim();

 private:
  bool is_cached(const CollectiveSpec& spec) const;

  bool valid_ = false;  // schedule_ is the schedule of spec_
  CollectiveSpec spec_;
  Schedule schedule_;
};

}  // namespace backplane::core
