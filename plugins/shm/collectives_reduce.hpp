// SPDX-License-Identifier: Apache-2.0
//
// Collectives that reduce. All ranks publish pieces of their input. Each rank reduces its share directly from the slots
// of the others, in ascending rank order, and publishes the result. Each element is reduced by one rank, so all ranks
// get identical bits. Small inputs are reduced by every rank, in the same order.
#pragma once

#include <vector>

#include "reductions.hpp"
#include "steps.hpp"
#include "zero_copy.hpp"

namespace backplane::shm {

struct Call;

// Used by Collectives, one collective at a time.
class ReducingCollectives {
 public:
  // `others`: the other ranks in the order in which this rank reads from them. All must outlive this object.
  ReducingCollectives(int32_t rank, int32_t world_size, const Reductions& reductions, Steps& steps,
                      const std::vector<int32_t>& others, ZeroCopy& zero_copy, bool oversubscribed)
      : rank_(rank),
        world_size_(world_size),
        reductions_(reductions),
        steps_(steps),
        others_(others),
        zero_copy_(zero_copy),
        oversubscribed_(oversubscribed),
        inputs_(static_cast<size_t>(world_size)) {}

  void all_reduce(const Call& call);  // also BP_REDUCE
  void reduce_scatter(const Call& call);

 private:
  void reduce_on_all(const Call& call, bool here);
  void reduce_at_root(const Call& call, bool here);
  void reduce_in_shares(const Call& call, bool here);
  void all_reduce_zero_copy(const Call& call);
  template <typename Body>
  void in_parts(const Call& call, uint64_t size, const Body& body) const;
  template <typename InputOf>
  void combine_all(const Call& call, std::byte* out, uint64_t size, const InputOf& input);

  const int32_t rank_;
  const int32_t world_size_;
  const Reductions& reductions_;
  Steps& steps_;
  const std::vector<int32_t>& others_;
  ZeroCopy& zero_copy_;
  const bool oversubscribed_;
  std::vector<const void*> inputs_;   // by rank; operands of the current reduction
  std::vector<const void*> scalars_;  // by rank; empty without scalars
};

}  // namespace backplane::shm
