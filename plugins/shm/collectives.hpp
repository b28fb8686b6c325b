// SPDX-License-Identifier: Apache-2.0
//
// All collectives, in steps (steps.hpp). There are two patterns:
//
//   pass      each rank shows a piece of what it has, for all ranks alike or one for each; the others copy it out.
//   reduce    all ranks show a piece of their input; each reduces its share of it straight from the places of the
//             others, in ascending order of ranks, and shows the result. One rank alone reduces each element, so that
//             all get the same bits. What is small, each rank reduces for itself, in the same order.
//
// What lies in a rank's heap it need not show: it lends it (lending.hpp), and the others read it where it is. So they
// do with other inputs, in its process, where that is permitted and was measured to be faster.
//
// A piece is shown before the one before it is read, so that nobody waits for what is already under way.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "lending.hpp"
#include "reductions.hpp"
#include "steps.hpp"

namespace backplane::shm {

class Collectives {
 public:
  // `pools` and `cross` may be null; `log` is told what was measured. `is_crowd`: there are more ranks than processors;
  // all must say the same. When all ranks have come.
  Collectives(int32_t rank, int32_t world_size, const Reductions& reductions, Steps& steps, const Pools* pools,
              CrossMemory* cross = nullptr, std::function<void(const std::string&)> log = {}, bool is_crowd = false)
      : rank_(rank),
        world_size_(world_size),
        reductions_(reductions),
        steps_(steps),
        others_(reading_order(rank, steps.peers().sites())),
        is_crowd_(is_crowd),
        lending_(rank, world_size, pools, cross, steps),
        inputs_(static_cast<size_t>(world_size)),
        trials_(BP_OP_COUNT, Trial(cross == nullptr ? Cma::kOff : cross->use(), is_crowd_)),
        log_(std::move(log)) {}

  // Any collective, in a group of two ranks or more. Blocks. One at a time.
  void run(const bp_op& op, Limit& limit);

  struct Call;  // an operation in bytes

 private:
  struct Pattern;  // of `pass`
  class Passing;

  void perform(const Call& call);
  void meet(const Call& call);
  void broadcast(const Call& call);
  void broadcast_at_once(const Call& call);
  void gather(const Call& call);
  void scatter(const Call& call);
  void all_gather(const Call& call);
  void all_to_all(const Call& call);
  void reduce_scatter(const Call& call);
  void all_reduce(const Call& call);

  uint64_t agree_on_most(const Call& call, uint64_t mine, int32_t only_rank);
  void pass(const Call& call, const Pattern& pattern);
  void pass_at_once(const Call& call, const Pattern& pattern);
  void measured(const Call& call, Pattern& pattern);
  void measured_by_root(const Call& call, Pattern& pattern);
  void reduce_small(const Call& call, bool here);
  void reduce_at_root(const Call& call, bool here);
  void reduce_large(const Call& call, bool here);
  void all_reduce_directly(const Call& call);
  void check(const Call& call) const;
  // Has body(begin, end) work on `size` bytes in parts of kPart, which stay in the cache; notices abort and deadline.
  static constexpr uint64_t kPart = UINT64_C(16) << 10;
  template <typename Body>
  void in_parts(const Call& call, uint64_t size, const Body& body) const;
  // Copies what a rank lends.
  void fetch(const Call& call, int32_t rank, std::byte* to, const std::byte* from, uint64_t size) const;
  // Ends a collective in which somebody may have lent his input: lenders wait until all have read it, after what this
  // rank has to do `meanwhile`.
  void return_loans(const Call& call, int32_t only_reader = -1, const std::function<void()>& meanwhile = {});
  // out = input(0) op input(1) op ..., in this order, divided by the number of ranks if it is an average. If inputs are
  // to be multiplied, the lending has heard by what. `out` may be this rank's own input.
  template <typename InputOf>
  void combine_all(const Call& call, std::byte* out, uint64_t size, const InputOf& input);

  const int32_t rank_;
  const int32_t world_size_;
  const Reductions& reductions_;
  Steps& steps_;
  const std::vector<int32_t> others_;  // as this rank reads from them
  const bool is_crowd_;
  Lending lending_;
  std::vector<const void*> inputs_;   // by rank, of what is being reduced
  std::vector<const void*> scalars_;  // by rank, if there are any
  std::vector<Trial> trials_;         // by kind: of lending inputs in this process
  // In how many scatters more this rank, their root, asks who reads in processes. Not in one alone: a rank may be ahead
  // of others by kLag steps, and cannot read those that have not yet started.
  uint32_t questions_ = kSteps;
  const std::function<void(const std::string&)> log_;
};

template <typename Body>
void Collectives::in_parts(const Call& call, uint64_t size, const Body& body) const {
  constexpr uint64_t kBetweenChecks = UINT64_C(1) << 20;
  for (uint64_t begin = 0; begin < size; begin += kPart) {
    if (begin > 0 && begin % kBetweenChecks == 0) check(call);
    body(begin, std::min(size, begin + kPart));
  }
}

// Any collective in a group of one.
void run_alone(const bp_op& op, const Reductions& reductions);

}  // namespace backplane::shm
