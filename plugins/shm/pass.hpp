// SPDX-License-Identifier: Apache-2.0
//
// The pattern `pass` of collectives.hpp.
#pragma once

#include "call.hpp"

namespace backplane::shm {

// What is done in each step: sizes and offsets are bytes.
struct Collectives::Pattern {
  uint64_t size = 0;                         // of the largest block; the same on all ranks
  bool each = false;                         // a block for each rank instead of one for all
  bool in_place = false;                     // what is read takes the place of what was shown, and so in pieces
  bool says_who_reads = false;               // inputs may be lent in processes: each says whether it reads there
  Trial::Best took = {};                     // what this rank says of how long that takes
  bool meets = false;                        // all end it together with the only rank that shows anything
  bool in_process = false;                   // inputs are lent there, if they are in no heap
  Block lends;                               // what this rank may lend instead of showing it; of nothing: it may not
  int32_t only_from = -1;                    // the only rank that shows anything, or -1
  int32_t only_to = -1;                      // the only rank that reads anything, or -1
  std::function<Block(int32_t to)> mine;     // what this rank shows; not `each`: asked for rank 0
  std::function<Room(int32_t from)> theirs;  // where that goes what it reads
  Room own;  // where this rank's own block goes, or what it shows of patterns that are not `each`; if at all

  bool shows(int32_t rank) const { return only_from < 0 || only_from == rank; }
  bool reads(int32_t rank) const { return only_to < 0 || only_to == rank; }
};

// One time through it, in as many steps as the blocks need that fit into no lines.
class Collectives::Passing {
 public:
  Passing(Collectives* collectives, const Call& call, const Pattern& pattern);
  void run();  // blocks

 private:
  void offer();                                                  // what this rank lends, and says with it
  uint32_t show(uint64_t offset);                                // the next step, with a piece of each block
  void stage(uint32_t step, uint64_t offset);                    // copies that piece to where the others see it
  void read(uint32_t step, uint64_t offset);                     // the pieces of the others, and what they lend
  void read_from(int32_t from, uint32_t step, uint64_t offset);  // one of them
  Lending::Wanted wanted(uint64_t size) const;                   // of what another one lends
  void copy_own(uint64_t end);                                   // of its own block, up to there
  bool all_is_lent() const;                                      // by all who show anything

  Collectives& all_;
  const Call& call_;
  const Pattern& pattern_;
  const uint64_t parts_;   // blocks that a rank shows, its own among them
  const uint64_t stride_;  // bytes of each block in a step
  const bool may_lend_;
  const bool shows_;
  const bool reads_;
  bool lends_ = false;   // instead of staging
  bool asks_ = false;    // as a root that hears nobody else: who reads in processes
  uint64_t copied_ = 0;  // bytes of its own block that are where they go
};

}  // namespace backplane::shm
