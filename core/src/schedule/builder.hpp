// SPDX-License-Identifier: Apache-2.0
//
// Builds a Schedule step by step and keeps its invariants: no step of count 0 (except a barrier's messages), no empty
// round, and a scratch_count that covers every region.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.hpp"

namespace backplane::core {

inline Region input(uint64_t offset, uint64_t count) { return {BufferRole::kInput, offset, count}; }
inline Region output(uint64_t offset, uint64_t count) { return {BufferRole::kOutput, offset, count}; }
inline Region scratch(uint64_t offset, uint64_t count) { return {BufferRole::kScratch, offset, count}; }

// The order of the operands of reduce(). All current reduce operations give the same bits in either order
// (reduce/combine.hpp).
enum class Order : uint8_t { kTargetFirst, kSourceFirst };

// Where the buffers of a part of a schedule are in those of the whole. The counts of the regions are not used.
struct Placement {
  Region input;
  Region output;
  uint64_t scratch_at = 0;  // elements
};

// Within a round all sends and recvs come before the first copy or reduce.
class Builder {
 public:
  void send(int32_t peer, Region source);
  void recv(int32_t peer, Region target);
  void copy(Region target, Region source);
  void reduce(Region target, Region source, Order order, bool completes = false);
  // Sends and receives an empty message.
  void signal(int32_t to, int32_t from);
  void signal_to(int32_t to);
  void signal_from(int32_t from);
  void end_round();
  // Adds the rounds of a schedule among some ranks, whose rank r is ranks[r]. `completes`: whether its results contain
  // the inputs of all ranks of the whole.
  void append(const Schedule& part, const std::vector<int32_t>& ranks, const Placement& at, bool completes);
  Schedule finish() &&;

 private:
  void add(const Step& step);
  void reserve_scratch(const Region& region);

  Schedule schedule_;
};

}  // namespace backplane::core
