// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule_cache.hpp"

namespace backplane::core {

namespace {

// Not with the counts of a v-variant, which the caller may change in place.
bool is_cacheable(const CollectiveSpec& spec) { return spec.in_counts == nullptr && spec.out_counts == nullptr; }

bool have_same_schedule(const CollectiveSpec& a, const CollectiveSpec& b) {
  return a.kind == b.kind && a.root == b.root && a.count == b.count && a.element_size == b.element_size &&
         a.own_count == b.own_count && a.topology == b.topology && a.may_overlap == b.may_overlap;
}

}  // namespace

const Schedule& ScheduleCache::get(const CollectiveSpec& spec) {
  last_ = is_cacheable(spec) ? find(spec) : nullptr;
  if (last_ != nullptr) return last_->schedule;
  Entry& entry = entries_[next_];
  entry.valid = false;  // in case make_schedule throws
  entry.schedule = make_schedule(choose_algorithm(spec), spec);
  entry.spec = spec;
  entry.valid = is_cacheable(spec);
  if (entry.valid) next_ = (next_ + 1) % entries_.size();
  last_ = &entry;
  return entry.schedule;
}

void ScheduleCache::trim() {
  constexpr size_t kMaxSteps = 256;  // 16 KiB
  if (last_ == nullptr || last_->schedule.steps.capacity() <= kMaxSteps) return;
  *last_ = {};
  last_ = nullptr;
}

ScheduleCache::Entry* ScheduleCache::find(const CollectiveSpec& spec) {
  for (Entry& entry : entries_) {
    if (entry.valid && have_same_schedule(entry.spec, spec)) return &entry;
  }
  return nullptr;
}

}  // namespace backplane::core
