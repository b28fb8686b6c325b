// SPDX-License-Identifier: Apache-2.0
//
// Writes a Schedule step by step and keeps its invariants: no step of count 0 (except a barrier's messages), no empty
// round, and scratch_count large enough for every region named.
#pragma once

#include <cstdint>

#include "schedule/schedule.hpp"

namespace backplane::core {

inline Region input(uint64_t offset, uint64_t count) { return {Where::kInput, offset, count}; }
inline Region output(uint64_t offset, uint64_t count) { return {Where::kOutput, offset, count}; }
inline Region scratch(uint64_t offset, uint64_t count) { return {Where::kScratch, offset, count}; }

// Only the arguments of reduce() name an order; all the combinations are commutative by bits (reduce/combine.hpp), so
// the order is for the reader and for operations to come.
enum class Order : uint8_t { kTargetFirst, kSourceFirst };

// Within a round all sends and recvs come before the first copy or reduce.
class Builder {
 public:
  void send(int32_t peer, Region source);
  void recv(int32_t peer, Region target);
  void copy(Region target, Region source);
  void reduce(Region target, Region source, Order order, bool completes = false);
  // Both with nothing in them.
  void signal(int32_t to, int32_t from);
  void end_round();
  Schedule finish() &&;

 private:
  void add(const Step& step);
  void cover(const Region& region);

  Schedule schedule_;
};

}  // namespace backplane::core
