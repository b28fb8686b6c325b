// SPDX-License-Identifier: Apache-2.0
//
// The cost of a schedule for the busiest rank, by the formulas of its paper, for the choice of an algorithm.
#pragma once

#include "schedule/schedule.hpp"

namespace backplane::core {

struct Cost {
  double messages = 0;  // in sequence
  double bytes = 0;     // sent or received, whichever is more
  double copied = 0;    // bytes moved within the rank's memory, in addition to those of every algorithm for the kind
};

// Not for v-variants: a rank does not know their sizes.
Cost cost_of(Algorithm algorithm, const CollectiveSpec& spec);

}  // namespace backplane::core
