// SPDX-License-Identifier: Apache-2.0
//
// The collectives, as blocking calls of gloo's algorithms.
#pragma once

#include <memory>

#include "context.hpp"

namespace backplane::gloo {

// Which all_reduce. gloo's two compute each element on one rank and hand it round; directly, every rank sends all it
// has to every other, and all reduce in the order of the ranks. So all ranks have the same bits.
enum class Algorithm { kAuto, kRing, kBcube, kDirect };

class Collectives {
 public:
  Collectives(std::shared_ptr<::gloo::Context> mesh, const sdk::Host& host, Algorithm algorithm);

  // Blocks until it is done, the current DeadlineScope ends or a connection does. `op` is a collective that this
  // backend declares. Throws sdk::Failure and gloo's exceptions.
  void run(const bp_op& op);

 private:
  void barrier(const bp_op& op);
  void broadcast(const bp_op& op);
  void reduce(const bp_op& op);
  void all_reduce(const bp_op& op);
  Algorithm choose(uint64_t bytes) const;
  void all_reduce_directly(const bp_op& op);
  void gather(const bp_op& op);
  void scatter(const bp_op& op);
  void all_gather(const bp_op& op);
  void all_gatherv(const bp_op& op);
  void all_to_all(const bp_op& op);
  void all_to_allv(const bp_op& op);

  const std::shared_ptr<::gloo::Context> mesh_;
  const sdk::Host host_;
  const Algorithm algorithm_;
};

// True if the operation moves nothing on any rank, and all ranks can see that by themselves.
bool is_empty(const bp_op& op, int world_size);

// What a collective comes to in a group of one rank.
void run_alone(const bp_op& op);

}  // namespace backplane::gloo
