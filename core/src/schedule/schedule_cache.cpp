// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule_cache.hpp"

namespace backplane::core {

const Schedule& ScheduleCache::get(const CollectiveSpec& spec) {
  if (is_cached(spec)) return schedule_;
  valid_ = false;  // in case make_schedule throws
  schedule_ = make_schedule(choose_algorithm(spec), spec);
  spec_ = spec;
  // Not with the counts of a v-variant, which the caller may change in place.
  valid_ = spec.in_counts == nullptr && spec.out_counts == nullptr;
  return schedule_;
}

void ScheduleCache::trim() {
  constexpr size_t kMaxSteps = 256;  // 16 KiB
  if (schedule_.steps.capacity() <= kMaxSteps) return;
  valid_ = false;
  schedule_ = {};
}

bool ScheduleCache::is_cached(const CollectiveSpec& spec) const {
  if (!valid_ || spec.in_counts != nullptr || spec.out_counts != nullptr) return false;
  return spec_.kind == spec.kind && spec_.root == spec.root && spec_.count == spec.count &&
         spec_.element_size == spec.element_size && spec_.own_count == spec.own_count &&
         spec_.topology == spec.topology;
}

}  // namespace backplane::core
