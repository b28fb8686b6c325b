// SPDX-License-Identifier: Apache-2.0
//
// When a collective does not end: where each rank of the group is, and one sentence that names the culprit. Pure
// functions over the contents of flight recorders.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "group/operation.hpp"
#include "group/recorder.hpp"

namespace backplane::core {

// An operation without its number: "all_reduce sum (f32 x 4)", "broadcast (u8 x 1) from root 2", "recv (u8 x 4) from
// rank 1". Collectives match if their signatures are equal on all ranks; counts of v-variants differ and are left out.
std::string signature(const Recorder::Entry& entry);
std::string signature(const Operation& operation);

// Where one rank is.
struct Position {
  struct Step {
    std::string signature;
    uint64_t seq = 0;
    bool collective = true;
    double seconds = 0;  // since it began (in flight) or ended
  };
  std::string identity;           // "host, pid 4711"
  std::string entered;            // signature of the collective in question; empty: not entered
  bool finished = false;          // that collective
  std::optional<Step> in_flight;  // the oldest operation
  std::optional<Step> last;       // the one that ended last
};

// This rank's position with regard to collective `seq`.
Position position(const Recorder& recorder, uint64_t seq, const std::string& identity);

std::string encode(const Position& position);                      // JSON
std::optional<Position> decode_position(const std::string& text);  // nothing if malformed

struct Diagnosis {
  std::string text;      // one sentence without a full stop
  int32_t culprit = -1;  // a rank, or -1 if no rank is to blame
};

// Finds the ranks that entered another collective as number `seq` than most ranks did. None: no diagnosis.
std::optional<Diagnosis> find_mismatch(uint64_t seq, const std::map<int32_t, Position>& positions);

// Collective `seq`, with this signature on the asking rank, did not end in time. `positions`: by rank; a rank that is
// missing did not answer.
Diagnosis diagnose(uint64_t seq, const std::string& signature, int32_t world_size,
                   const std::map<int32_t, Position>& positions);

}  // namespace backplane::core
