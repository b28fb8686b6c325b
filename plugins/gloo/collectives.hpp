// SPDX-License-Identifier: Apache-2.0
//
// Collectives as blocking calls of gloo's algorithms.
#pragma once

#include <memory>

#include "transport.hpp"

namespace backplane::gloo {

// The all_reduce algorithm. kRing and kBcube are gloo's: each element is reduced on one rank and distributed. kDirect
// sends all data to all ranks, and all reduce in rank order. With each of them all ranks get identical bits.
enum class Algorithm { kAuto, kRing, kBcube, kDirect };

class Collectives {
 public:
  Collectives(std::shared_ptr<::gloo::Context> mesh, const sdk::Host& host, Algorithm algorithm);

  // Blocks until the operation is done, the current DeadlineScope expires or a connection ends. `op` must be a
  // collective that the backend declares. Throws sdk::Failure and gloo's exceptions.
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

// True if the operation moves no data on any rank, as far as every rank can tell by itself.
bool is_empty(const bp_op& op, int world_size);

// Performs a collective in a group of one rank.
void run_alone(const bp_op& op);

}  // namespace backplane::gloo
