// SPDX-License-Identifier: Apache-2.0
//
// When a collective does not end: where each rank of the group stands, and the one sentence that says whose fault it
// is. Pure functions over what the flight recorders hold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "group/recorder.hpp"

namespace backplane::core {

// An operation in words: "all_reduce sum (f32 x 4)", "broadcast (u8 x 1) from root 2", "recv (u8 x 4) from rank 1".
// Collectives of the same words on all ranks go together. Counts of v-variants are each rank's own and left out.
std::string words(const Recorder::Entry& entry);

// What one rank says of itself.
struct Position {
  struct Step {
    std::string words;
    uint64_t seq = 0;
    bool collective = true;
    double seconds = 0;  // since it began (in flight) or ended
  };
  std::string identity;           // "host, pid 4711"
  std::string entered;            // words of the collective that it was asked about; empty: not entered
  bool finished = false;          // that collective
  std::optional<Step> in_flight;  // the oldest operation
  std::optional<Step> last;       // the one that ended last
};

// This rank's position with regard to collective `seq`.
Position position(const Recorder& recorder, uint64_t seq, const std::string& identity);

std::string encode(const Position& position);                      // JSON
std::optional<Position> decode_position(const std::string& text);  // nothing if it is not one

struct Verdict {
  std::string text;      // one sentence without a full stop
  int32_t culprit = -1;  // a rank, or -1 if no rank is to blame
};

// Who is in another collective `seq` than most of those that have entered it. None: nobody.
std::optional<Verdict> find_mismatch(uint64_t seq, const std::map<int32_t, Position>& positions);

// Collective `seq`, which is `words` on the asking rank, did not end in time. `positions`: what the ranks answered;
// who is missing did not answer.
Verdict judge(uint64_t seq, const std::string& words, int32_t world_size, const std::map<int32_t, Position>& positions);

}  // namespace backplane::core
