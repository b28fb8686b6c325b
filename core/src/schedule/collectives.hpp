// SPDX-License-Identifier: Apache-2.0
//
// One function per collective and algorithm, each in the source file of its collective; schedule.cpp has them in one
// table. Where a v-variant differs from its collective only in the division of the buffer, one function serves both.
#pragma once

#include "schedule/schedule.hpp"

namespace backplane::core {

Schedule dissemination_barrier(const Problem& problem);
Schedule binomial_broadcast(const Problem& problem);
Schedule ring_broadcast(const Problem& problem);
Schedule binomial_reduce(const Problem& problem);
Schedule ring_reduce(const Problem& problem);
Schedule recursive_doubling_all_reduce(const Problem& problem);
Schedule ring_all_reduce(const Problem& problem);
Schedule binomial_gather(const Problem& problem);
Schedule linear_gather(const Problem& problem);  // and gatherv
Schedule binomial_scatter(const Problem& problem);
Schedule linear_scatter(const Problem& problem);  // and scatterv
Schedule bruck_all_gather(const Problem& problem);
Schedule ring_all_gather(const Problem& problem);          // and all_gatherv
Schedule ring_reduce_scatter(const Problem& problem);      // and reduce_scatterv
Schedule pairwise_reduce_scatter(const Problem& problem);  // and reduce_scatterv
Schedule bruck_all_to_all(const Problem& problem);
Schedule pairwise_all_to_all(const Problem& problem);
Schedule pairwise_all_to_allv(const Problem& problem);
Schedule doubling_scan(const Problem& problem);
Schedule doubling_exscan(const Problem& problem);

}  // namespace backplane::core
