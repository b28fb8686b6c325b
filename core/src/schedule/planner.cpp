// SPDX-License-Identifier: Apache-2.0
#include "schedule/planner.hpp"

namespace backplane::core {

const Schedule& Planner::schedule(const Problem& problem) {
  if (repeats(problem)) return schedule_;
  known_ = false;  // what follows may throw
  schedule_ = make_schedule(choose_algorithm(problem), problem);
  problem_ = problem;
  // The counts of a v-variant are the caller's, who may change them where they are.
  known_ = problem.in_counts == nullptr && problem.out_counts == nullptr;
  return schedule_;
}

void Planner::trim() {
  constexpr size_t kMostSteps = 256;  // 16 KiB
  if (schedule_.steps.capacity() <= kMostSteps) return;
  known_ = false;
  schedule_ = {};
}

bool Planner::repeats(const Problem& problem) const {
  if (!known_ || problem.in_counts != nullptr || problem.out_counts != nullptr) return false;
  return problem_.kind == problem.kind && problem_.root == problem.root && problem_.count == problem.count &&
         problem_.element_size == problem.element_size && problem_.own_count == problem.own_count;
}

}  // namespace backplane::core
