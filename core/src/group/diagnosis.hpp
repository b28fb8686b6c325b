// SPDX-License-Identifier: Apache-2.0
//
// The diagnosis of a collective that does not end: the position of each rank, and one sentence that names the rank at
// fault. Pure functions over the contents of flight recorders.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "group/operation.hpp"
#include "group/recorder.hpp"

namespace backplane::core {

// The description of an operation without its number: "all_reduce sum (f32 x 4)", "recv (u8 x 4) from rank 1".
// Collectives match if their signatures are equal on all ranks. Omits the counts of v-variants, which differ.
std::string signature(const Recorder::Entry& entry);
std::string signature(const Operation& operation);

// The position of one rank.
struct Position {
  struct Step {
    std::string signature;
    uint64_t seq = 0;
    bool collective = true;
    double seconds = 0;  // since it began (in flight) or ended
  };
  std::string identity;           // "host, pid 4711"
  std::string entered;            // signature of the collective that is diagnosed; empty: not entered
  bool finished = false;          // has finished that collective
  std::optional<Step> in_flight;  // the oldest operation
  std::optional<Step> last;       // the operation that ended last
};

// This rank's position relative to collective `seq`.
Position position(const Recorder& recorder, uint64_t seq, const std::string& identity);

std::string encode(const Position& position);                      // JSON
std::optional<Position> decode_position(const std::string& text);  // nothing if malformed

struct Diagnosis {
  std::string text;          // one sentence without a full stop
  int32_t failed_rank = -1;  // the rank at fault, -1 if there is none
};

// Finds the ranks whose collective `seq` differs from that of most ranks. nullopt if there are none.
std::optional<Diagnosis> find_mismatch(uint64_t seq, const std::map<int32_t, Position>& positions);

// The diagnosis of collective `seq`, which has this signature on the calling rank and did not end in time. `positions`:
// by rank; ranks that did not answer are missing.
Diagnosis diagnose(uint64_t seq, const std::string& signature, int32_t world_size,
                   const std::map<int32_t, Position>& positions);

}  // namespace backplane::core
