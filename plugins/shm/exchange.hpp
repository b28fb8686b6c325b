// SPDX-License-Identifier: Apache-2.0
//
// The pattern `exchange` of collectives.hpp.
#pragma once

#include "call.hpp"
#include "collectives.hpp"

namespace backplane::shm {

// The parameters of an exchange. Sizes and offsets are bytes.
struct Collectives::Pattern {
  uint64_t size = 0;                                // of the largest block, equal on all ranks
  bool each = false;                                // one block per rank instead of one for all
  bool in_place = false;                            // output overlaps input: exchanged piece by piece
  bool in_process = false;                          // inputs outside heaps may be exposed in the process
  Block exposes;                                    // the input that this rank may expose; empty: none
  int32_t only_from = -1;                           // the only rank that publishes, or -1
  int32_t only_to = -1;                             // the only rank that reads, or -1
  std::function<Block(int32_t to)> mine;            // what this rank publishes; called with 0 unless `each`
  std::function<OutputBlock(int32_t from)> theirs;  // destination of data from a rank
  OutputBlock own;                                  // destination of this rank's own block, if any

  bool publishes(int32_t rank) const { return only_from < 0 || only_from == rank; }
  bool reads(int32_t rank) const { return only_to < 0 || only_to == rank; }
};

// One exchange, in as many steps as the blocks need. For blocks too large for exchange_in_one_step.
class Collectives::Exchange {
 public:
  Exchange(Collectives* collectives, const Call& call, const Pattern& pattern);
  void run();  // blocks

 private:
  void expose();                                                 // exposes the input, announces what goes with it
  uint32_t publish(uint64_t offset);                             // publishes the next step with a piece of each block
  void stage(uint32_t step, uint64_t offset);                    // copies that piece to the slot
  void read(uint32_t step, uint64_t offset);                     // reads the pieces and exposed inputs of the others
  void read_from(int32_t from, uint32_t step, uint64_t offset);  // reads those of one rank
  ZeroCopy::Request request(uint64_t size) const;                // what this rank reads of an exposed input
  // Copies from the exposed buffer of a rank.
  void fetch(int32_t rank, std::byte* to, const std::byte* from, uint64_t size) const;
  void copy_own(uint64_t end);  // copies the own block up to there
  bool all_is_exposed() const;  // by all publishing ranks

  Collectives& all_;
  const Call& call_;
  const Pattern& pattern_;
  const uint64_t parts_;   // blocks per rank, including its own
  const uint64_t stride_;  // bytes of each block per step
  const bool is_active_;
  const bool publishes_;
  const bool reads_;
  bool exposes_ = false;  // instead of staging
  uint64_t copied_ = 0;   // bytes of the own block that have been copied
};

}  // namespace backplane::shm
