// SPDX-License-Identifier: Apache-2.0
//
// What a schedule costs the busiest rank, by the formulas of its paper; the choice of an algorithm compares them.
#pragma once

#include "schedule/schedule.hpp"

namespace backplane::core {

struct Cost {
  double messages = 0;  // one after the other
  double bytes = 0;     // sent or received, whichever is more
  double copied = 0;    // bytes moved within the rank's own memory, beyond what every algorithm for this kind moves
};

// Not for v-variants, whose sizes a rank does not know.
Cost cost_of(Algorithm algorithm, const Problem& problem);

}  // namespace backplane::core
