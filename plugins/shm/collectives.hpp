// SPDX-License-Identifier: Apache-2.0
//
// All collectives, in steps (steps.hpp). There are two patterns:
// - exchange: each rank publishes pieces of its data, the same for all ranks or one per rank; the others copy them.
// - reduce: all ranks publish pieces of their input. Each rank reduces its share directly from the slots of the others,
// in ascending rank order, and publishes the result. Each element is reduced by one rank, so all ranks get identical
// bits. Small inputs are reduced by every rank, in the same order.
//
// Zero copy (zero_copy.hpp): an input in a rank's heap is exposed instead of published, and the others read it in
// place. The same applies to other inputs where reading another process is permitted and was measured to be faster.
//
// A piece is published before the previous one is read, so that ranks do not wait for data under way.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "reductions.hpp"
#include "steps.hpp"
#include "zero_copy.hpp"

namespace backplane::shm {

class Collectives {
 public:
  // `pools` and `cross` may be null. `log` gets the results of measurements. `oversubscribed`: more ranks than
  // processors; must be equal on all ranks. Call when all ranks have joined.
  Collectives(int32_t rank, int32_t world_size, const Reductions& reductions, Steps& steps, const Pools* pools,
              CrossMemory* cross = nullptr, std::function<void(const std::string&)> log = {},
              bool oversubscribed = false)
      : rank_(rank),
        world_size_(world_size),
        reductions_(reductions),
        steps_(steps),
        others_(reading_order(rank, steps.peers().localities())),
        oversubscribed_(oversubscribed),
        zero_copy_(rank, world_size, pools, cross, steps),
        inputs_(static_cast<size_t>(world_size)),
        tuners_(BP_OP_COUNT, CopyTuner(cross == nullptr ? Cma::kOff : cross->use(), oversubscribed_)),
        log_(std::move(log)) {}

  // Runs any collective in a group of two or more ranks. Blocks. One at a time.
  void run(const bp_op& op, LazyDeadline& deadline);

  struct Call;  // the operation in bytes

 private:
  struct Pattern;  // of `exchange`
  class Exchange;

  void perform(const Call& call);
  void barrier(const Call& call);
  void broadcast(const Call& call);
  void broadcast_in_one_step(const Call& call);
  void gather(const Call& call);
  void scatter(const Call& call);
  void all_gather(const Call& call);
  void all_to_all(const Call& call);
  void reduce_scatter(const Call& call);
  void all_reduce(const Call& call);

  uint64_t agree_on_max(const Call& call, uint64_t mine, int32_t only_rank);
  void exchange(const Call& call, const Pattern& pattern);
  void exchange_in_one_step(const Call& call, const Pattern& pattern);
  void exchange_measured(const Call& call, Pattern& pattern);
  void exchange_measured_by_root(const Call& call, Pattern& pattern);
  void reduce_on_all(const Call& call, bool here);
  void reduce_at_root(const Call& call, bool here);
  void reduce_in_shares(const Call& call, bool here);
  void all_reduce_zero_copy(const Call& call);
  void check(const Call& call) const;
  // Calls body(begin, end) for parts of kPart bytes, which stay in the cache. Checks for abort and deadline in between.
  static constexpr uint64_t kPart = UINT64_C(16) << 10;
  template <typename Body>
  void in_parts(const Call& call, uint64_t size, const Body& body) const;
  // Copies from the exposed buffer of a rank.
  void fetch(const Call& call, int32_t rank, std::byte* to, const std::byte* from, uint64_t size) const;
  // Ends a collective in which inputs may have been exposed: their owners wait until all have read them. Runs
  // `meanwhile` before waiting.
  void finish_zero_copy(const Call& call, int32_t only_reader = -1, const std::function<void()>& meanwhile = {});
  // out = input(0) op input(1) op ..., in rank order; an average is divided by the number of ranks. If inputs have
  // scalars, zero_copy_ must have learned them. `out` may be this rank's own input.
  template <typename InputOf>
  void combine_all(const Call& call, std::byte* out, uint64_t size, const InputOf& input);

  const int32_t rank_;
  const int32_t world_size_;
  const Reductions& reductions_;
  Steps& steps_;
  const std::vector<int32_t> others_;  // in the order in which this rank reads from them
  const bool oversubscribed_;
  ZeroCopy zero_copy_;
  std::vector<const void*> inputs_;   // by rank; operands of the current reduction
  std::vector<const void*> scalars_;  // by rank; empty without scalars
  std::vector<CopyTuner> tuners_;     // by kind: whether to expose inputs in the process
  // The number of scatters left in which this rank, as root, collects which ranks can read processes. More than one,
  // because a rank may be up to kLag steps ahead of ranks that cannot be read before they have started.
  uint32_t reader_queries_ = kSteps;
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

// Performs any collective in a group of one.
void run_alone(const bp_op& op, const Reductions& reductions);

}  // namespace backplane::shm
