// SPDX-License-Identifier: Apache-2.0
//
// All collectives, in steps (steps.hpp). There are two patterns:
// - exchange: each rank publishes pieces of its data, the same for all ranks or one per rank; the others copy them.
// - reduce (collectives_reduce.hpp): each rank reduces its share of what the others publish.
//
// Zero copy (zero_copy.hpp): an input in a rank's heap is exposed instead of published, and the others read it in
// place. The same applies to other inputs where reading another process is permitted and faster (cross_memory.hpp).
//
// A piece is published before the previous one is read, so that ranks do not wait for data under way.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives_reduce.hpp"
#include "reductions.hpp"
#include "steps.hpp"
#include "zero_copy.hpp"

namespace backplane::shm {

class Collectives {
 public:
  // `pools` and `cross` may be null. `log` is told why processes cannot be read. `oversubscribed`: more ranks than
  // processors; must be equal on all ranks. Call when all ranks have joined.
  Collectives(int32_t rank, int32_t world_size, const Reductions& reductions, Steps& steps, const Pools* pools,
              CrossMemory* cross = nullptr, std::function<void(const std::string&)> log = {},
              bool oversubscribed = false)
      : rank_(rank),
        world_size_(world_size),
        steps_(steps),
        others_(reading_order(rank, steps.peers().localities())),
        cross_(cross),
        zero_copy_(rank, world_size, pools, cross, steps),
        reducing_(rank, world_size, reductions, steps, others_, zero_copy_, oversubscribed),
        log_(std::move(log)) {}

  // Runs any collective in a group of two or more ranks. Blocks. One at a time.
  void run(const bp_op& op, LazyDeadline& deadline);

 private:
  struct Pattern;  // of `exchange`
  class Exchange;

  void perform(const Call& call);
  void broadcast(const Call& call);
  void broadcast_in_one_step(const Call& call);
  void gather(const Call& call);
  void scatter(const Call& call);
  void all_gather(const Call& call);
  void all_to_all(const Call& call);

  uint64_t agree_on_max(const Call& call, uint64_t mine, int32_t only_rank);
  void exchange(const Call& call, const Pattern& pattern);
  void exchange_in_one_step(const Call& call, const Pattern& pattern);
  void exchange_readable(const Call& call, Pattern& pattern);
  bool all_can_read(const Call& call);

  const int32_t rank_;
  const int32_t world_size_;
  Steps& steps_;
  const std::vector<int32_t> others_;  // in the order in which this rank reads from them
  CrossMemory* const cross_;
  ZeroCopy zero_copy_;
  ReducingCollectives reducing_;
  std::optional<bool> all_can_read_;  // once the ranks have agreed
  const std::function<void(const std::string&)> log_;
};

// Performs any collective in a group of one.
void run_alone(const bp_op& op, const Reductions& reductions);

}  // namespace backplane::shm
