// SPDX-License-Identifier: Apache-2.0
//
// Counts what the schedules of a large group need, without running them: the simulator of simulator.hpp has symbols for
// at most 64 ranks.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "schedule/schedule.hpp"
#include "schedule/topology.hpp"

namespace backplane::core::testing {

// Of the rank that has the most.
struct Census {
  uint64_t rounds = 0;
  uint64_t bytes = 0;        // sent or received, whichever is more
  uint64_t connections = 0;  // to different ranks
  uint64_t memory = 0;       // bytes of scratch memory and of the schedule itself
  friend bool operator==(const Census&, const Census&) = default;
};

// The ranks with which a rank exchanges messages by this schedule.
std::set<int32_t> peers_of(const Schedule& schedule);

// Of these ranks of the collective `spec`, whose rank is ignored.
Census take_census(Algorithm algorithm, const CollectiveSpec& spec, const std::vector<int32_t>& ranks);

// All ranks.
std::vector<int32_t> all_ranks(int32_t world_size);
// Ranks near the ends, near powers of two, near the middle and elsewhere; all ranks if they are few. Schedules differ
// by the bits of a rank and by its distance to the ends.
std::vector<int32_t> sample_of_ranks(int32_t world_size);

// Whether each message that a rank sends is one that its peer expects, in the same order and of the same size. Builds
// the schedules of all ranks.
bool all_messages_match(Algorithm algorithm, const CollectiveSpec& spec);

// Ranks in the order of their hosts, so many on each.
Topology hosts_of(int32_t world_size, int32_t ranks_per_host);

}  // namespace backplane::core::testing
