// SPDX-License-Identifier: Apache-2.0
//
// One function per collective and algorithm, in the source file of the collective; schedule.cpp lists them in a table.
// A v-variant shares the function of its collective if only the division of the buffer differs.
#pragma once

#include "schedule/schedule.hpp"

namespace backplane::core {

Schedule dissemination_barrier(const CollectiveSpec& spec);
Schedule binomial_broadcast(const CollectiveSpec& spec);
Schedule ring_broadcast(const CollectiveSpec& spec);
Schedule binomial_reduce(const CollectiveSpec& spec);
Schedule ring_reduce(const CollectiveSpec& spec);
Schedule recursive_doubling_all_reduce(const CollectiveSpec& spec);
Schedule ring_all_reduce(const CollectiveSpec& spec);
Schedule binomial_gather(const CollectiveSpec& spec);
Schedule linear_gather(const CollectiveSpec& spec);  // and gatherv
Schedule binomial_scatter(const CollectiveSpec& spec);
Schedule linear_scatter(const CollectiveSpec& spec);  // and scatterv
Schedule bruck_all_gather(const CollectiveSpec& spec);
Schedule ring_all_gather(const CollectiveSpec& spec);          // and all_gatherv
Schedule ring_reduce_scatter(const CollectiveSpec& spec);      // and reduce_scatterv
Schedule pairwise_reduce_scatter(const CollectiveSpec& spec);  // and reduce_scatterv
Schedule bruck_all_to_all(const CollectiveSpec& spec);
Schedule pairwise_all_to_all(const CollectiveSpec& spec);
Schedule pairwise_all_to_allv(const CollectiveSpec& spec);
Schedule doubling_scan(const CollectiveSpec& spec);
Schedule doubling_exscan(const CollectiveSpec& spec);

// By spec.topology (hierarchy.hpp).
Schedule hierarchical_barrier(const CollectiveSpec& spec);
Schedule hierarchical_broadcast(const CollectiveSpec& spec);
Schedule hierarchical_reduce(const CollectiveSpec& spec);
Schedule hierarchical_all_reduce(const CollectiveSpec& spec);
Schedule hierarchical_gather(const CollectiveSpec& spec);
Schedule hierarchical_scatter(const CollectiveSpec& spec);
Schedule hierarchical_all_gather(const CollectiveSpec& spec);      // and all_gatherv
Schedule hierarchical_reduce_scatter(const CollectiveSpec& spec);  // and reduce_scatterv
Schedule hierarchical_all_to_all(const CollectiveSpec& spec);

}  // namespace backplane::core
