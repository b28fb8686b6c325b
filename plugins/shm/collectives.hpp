// SPDX-License-Identifier: Apache-2.0
//
// All collectives, in steps (steps.hpp). There are two patterns:
//
//   pass      each rank shows a piece of what it has, for all ranks alike or one for each; the others copy it out.
//   reduce    all ranks show a piece of their input; each reduces its share of it straight from the places of the
//             others, in ascending order of ranks, and shows the result. One rank alone reduces each element, so that
//             all get the same bits. What is small, each rank reduces for itself, in the same order.
//
// A piece is shown before the one before it is read, so that nobody waits for what is already under way.
#pragma once

#include <functional>

#include "reductions.hpp"
#include "steps.hpp"

namespace backplane::shm {

class Collectives {
 public:
  Collectives(int32_t rank, int32_t world_size, const Reductions& reductions, Steps& steps)
      : rank_(rank), world_size_(world_size), reductions_(reductions), steps_(steps) {}

  // Any collective, in a group of two ranks or more. Blocks. One at a time.
  void run(const bp_op& op, Limit& limit);

  struct Call;  // an operation in bytes

 private:
  struct Pattern;  // of `pass`

  void barrier(const Call& call);
  void broadcast(const Call& call);
  void gather(const Call& call);
  void scatter(const Call& call);
  void all_gather(const Call& call);
  void all_to_all(const Call& call);
  void reduce_scatter(const Call& call);
  void all_reduce(const Call& call);

  uint64_t agree_on_most(const Call& call, uint64_t mine, int32_t only_rank);
  void pass(const Call& call, const Pattern& pattern);
  void reduce_small(const Call& call, bool here);
  void reduce_large(const Call& call, bool here);
  // out = part(0) op part(1) op ..., in this order. `out` may be one of the first two.
  template <typename Part>
  void combine_all(const Call& call, std::byte* out, uint64_t size, const Part& part) const;

  const int32_t rank_;
  const int32_t world_size_;
  const Reductions& reductions_;
  Steps& steps_;
};

// Any collective in a group of one.
void run_alone(const bp_op& op);

}  // namespace backplane::shm
