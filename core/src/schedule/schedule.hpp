// SPDX-License-Identifier: Apache-2.0
//
// Collectives over send and recv, as pure data: what one rank has to do, round by round. Nothing here communicates, so
// every schedule can be checked and costed for thousands of ranks without a network (tests/schedule).
//
// Words. A *region* is a run of elements of one of the operation's buffers. A *step* moves or combines one region. A
// *round* is a set of sends and recvs that are in flight together, followed by local steps (copy, reduce) in their
// order; it ends when all of them are done. Within a round no recv target overlaps a region that is sent or received in
// the same round.
//
// In place. A schedule does not know whether output and input overlap, and is right in all the ways that
// backplane/abi/op.h allows. It copies the input to where it belongs in the output; in place that copy has one address
// for source and target, and the executor of the schedule omits it. The input is never a target.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "backplane/abi/types.h"

namespace backplane::core {

enum class Where : uint8_t { kInput, kOutput, kScratch };

struct Region {
  Where where = Where::kInput;
  uint64_t offset = 0;  // elements from the beginning of the buffer
  uint64_t count = 0;   // elements
};

struct Step {
  enum class Kind : uint8_t { kSend, kRecv, kCopy, kReduce };
  Kind kind = Kind::kSend;
  int32_t peer = -1;          // send, recv
  Region target;              // recv: filled; copy: filled; reduce: target = left op right (see source_first)
  Region source;              // send: what is sent; copy, reduce: what is read
  bool source_first = false;  // reduce: target = source op target; otherwise target = target op source
  bool completes = false;     // reduce: afterwards the inputs of all ranks are in the target
};

enum class Algorithm : uint8_t {
  kRing,
  kRecursiveDoubling,  // with fold for sizes that are no power of two
  kBinomial,
  kBruck,
  kDissemination,
  kPairwise,
  kLinear,  // the root exchanges with everyone directly: gather and scatter of much data, and their v-variants
};

struct Schedule {
  Algorithm algorithm = Algorithm::kRing;
  std::vector<Step> steps;           // round after round; in each, sends and recvs stand before copies and reduces
  std::vector<uint32_t> round_ends;  // index of the step after each round's last
  uint64_t scratch_count = 0;        // elements of scratch needed
};

// A collective as one rank sees it. Counts are elements, as in the table of backplane/abi/op.h.
struct Problem {
  uint32_t kind = BP_BARRIER;  // but BP_SEND and BP_RECV
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t root = 0;
  uint64_t count = 0;         // N of the table; unused by v-variants
  uint64_t element_size = 1;  // bytes; for the choice of an algorithm, and how finely it cuts much data
  // v-variants: world_size elements each where the table names them for this rank, else NULL.
  const uint64_t* in_counts = nullptr;
  const uint64_t* in_displs = nullptr;
  const uint64_t* out_counts = nullptr;
  const uint64_t* out_displs = nullptr;
  uint64_t own_count = 0;  // gatherv, scatterv: this rank's N
};

// The algorithms that exist for a kind, the default one first.
std::vector<Algorithm> algorithms_for(uint32_t kind);

// Which one to use: the least cost by the model of cost.hpp, and for v-variants the default. All ranks that agree on
// kind, world_size, count and element_size (v-variants: kind and world_size) choose the same.
Algorithm choose_algorithm(const Problem& problem);

// What this rank has to do. The algorithm must be one of algorithms_for(kind). Steps with count 0 are left out on both
// sides, except the empty messages of a barrier.
Schedule make_schedule(Algorithm algorithm, const Problem& problem);

std::string_view name_of(Algorithm algorithm);

}  // namespace backplane::core
