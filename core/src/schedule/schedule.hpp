// SPDX-License-Identifier: Apache-2.0
//
// Collectives over send and recv as pure data: the steps of one rank, round by round. Nothing here communicates, so
// that tests can check every schedule and its cost for many ranks without a network (tests/schedule).
//
// Terms. A *region* is a contiguous range of elements of one buffer. A *step* moves or combines one region. A *round*
// is a set of sends and recvs that are in flight together, followed by local steps (copy, reduce) in their order; it
// ends when all of them are done. In a round no recv target overlaps another region that is sent or received.
//
// In place. A schedule is correct for every overlap of input and output that backplane/abi/op.h allows, without knowing
// it: it copies the input to its position in the output. In place, source and target of that copy have the same
// address, and the executor omits it. The input is never a target. Without an overlap (CollectiveSpec::may_overlap) a
// schedule may use the output where it would use scratch memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "backplane/abi/types.h"

namespace backplane::core {

enum class BufferRole : uint8_t { kInput, kOutput, kScratch };

struct Region {
  BufferRole buffer = BufferRole::kInput;
  uint64_t offset = 0;  // elements from the beginning of the buffer
  uint64_t count = 0;   // elements
};

struct Step {
  enum class Kind : uint8_t { kSend, kRecv, kCopy, kReduce };
  Kind kind = Kind::kSend;
  int32_t peer = -1;          // send, recv
  Region target;              // recv: filled; copy: filled; reduce: target = left op right (see source_first)
  Region source;              // send: sent; copy, reduce: read
  bool source_first = false;  // reduce: target = source op target; otherwise target = target op source
  bool completes = false;     // reduce: afterwards the target contains the inputs of all ranks
};

enum class Algorithm : uint8_t {
  kRing,
  kRecursiveDoubling,  // with a fold for world sizes that are not powers of two
  kBinomial,
  kBruck,
  kDissemination,
  kPairwise,
  kLinear,        // the root exchanges a message with each rank: gather and scatter of large data, and their v-variants
  kHierarchical,  // by the topology of the spec
};

struct Schedule {
  Algorithm algorithm = Algorithm::kRing;
  std::vector<Step> steps;           // by round; in each round, sends and recvs come before copies and reduces
  std::vector<uint32_t> round_ends;  // index of the step after each round's last
  uint64_t scratch_count = 0;        // elements of scratch needed
};

struct Topology;  // schedule/topology.hpp

// A collective from the view of one rank. Counts are elements, as in the table of backplane/abi/op.h.
struct CollectiveSpec {
  uint32_t kind = BP_BARRIER;  // not BP_SEND or BP_RECV
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t root = 0;
  uint64_t count = 0;         // N of the table; unused by v-variants
  uint64_t element_size = 1;  // bytes; for the choice of the algorithm and of the slice size
  // v-variants: world_size elements each if this rank uses them according to the table, otherwise NULL.
  const uint64_t* in_counts = nullptr;
  const uint64_t* in_displs = nullptr;
  const uint64_t* out_counts = nullptr;
  const uint64_t* out_displs = nullptr;
  uint64_t own_count = 0;  // gatherv, scatterv: this rank's N
  // Whether this rank's output may overlap its input. The messages are the same in either case.
  bool may_overlap = true;
  // Which ranks are near each other, the same on all ranks; NULL: all are equally far. Outlives the schedule's making.
  const Topology* topology = nullptr;
};

// The algorithms for a kind without a topology, the default first.
std::vector<Algorithm> algorithms_for(uint32_t kind);

// The algorithm with the least cost by the model of cost.hpp; for v-variants the default. With a topology:
// kHierarchical for the kinds that have it. Ranks with the same kind, world_size, count and element_size (v-variants:
// kind and world_size) choose the same algorithm.
Algorithm choose_algorithm(const CollectiveSpec& spec);

// Whether a collective of this kind has a schedule by topology.
bool has_hierarchical(uint32_t kind);

// The schedule of this rank. Throws std::invalid_argument unless the algorithm is one of algorithms_for(kind) or, with
// a topology, kHierarchical. Steps with count 0 are omitted on both sides, except the empty messages of a barrier.
Schedule make_schedule(Algorithm algorithm, const CollectiveSpec& spec);

std::string_view name_of(Algorithm algorithm);

}  // namespace backplane::core
