// SPDX-License-Identifier: Apache-2.0
//
// Keeps the last schedules, because programs repeat their collectives, and making a schedule takes longer than running
// it for small data.
#pragma once

#include <array>
#include <cstddef>

#include "schedule/schedule.hpp"

namespace backplane::core {

// For one rank of one group: rank and world_size of all specs are the same. Not thread-safe.
class ScheduleCache {
 public:
  // The schedule of the best algorithm: a kept one if the spec is the same. Valid until the next call.
  const Schedule& get(const CollectiveSpec& spec);
  // Drops the schedule of the last call if it takes much memory.
  void trim();

 private:
  struct Entry {
    bool valid = false;  // `schedule` is the schedule of `spec`
    CollectiveSpec spec;
    Schedule schedule;
  };

  Entry* find(const CollectiveSpec& spec);

  std::array<Entry, 4> entries_;
  size_t next_ = 0;        // replaced by the next new schedule
  Entry* last_ = nullptr;  // of the last call
};

}  // namespace backplane::core
