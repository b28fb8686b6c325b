// SPDX-License-Identifier: Apache-2.0
//
// One collective on one rank: its buffers, the bp_op, and the check of the result. Built from a Shape that is the same
// on all ranks, so that each rank knows all inputs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../rank.hpp"
#include "collectives_data.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {

struct Shape {
  uint32_t op = BP_BARRIER;
  uint32_t dtype = BP_U8;
  uint32_t reduce_op = BP_SUM;
  uint64_t count = 0;  // elements of a block; v-variants scale it rank by rank
  int32_t root = 0;
  bool sync = false;
  bool in_place = false;
  bool uneven = false;    // v-variants: blocks of different sizes, some empty, in reverse order and with gaps between
  bool adjacent = false;  // input and output touch, but do not overlap
  uint64_t skew = 0;      // buffers begin that many bytes off a multiple of 64
  uint64_t name = 0;      // of the data
  // Replaces the usual input of `rank`. Its blocks for several ranks are then equal.
  std::function<void(int32_t rank, void* data, uint64_t count)> operands = {};
  // Replaces the usual comparison of a reduction's result. Returns "" or the difference.
  std::function<std::string(const Shape& shape, const void* actual, int32_t ranks)> special = {};
  int32_t additions = 0;  // see Reduction::allow_rounding
};

std::string shape_text(const Shape& shape);
bool reduces(uint32_t op);
bool rooted(uint32_t op);
bool has_counts(uint32_t op);  // a v-variant
bool has_blocks(uint32_t op);  // input or output has a block for each rank
bool may_be_in_place(uint32_t op);

class Call {
 public:
  // Fills the input and keeps a copy of it if the operation must not change it.
  Call(const Shape& shape, int32_t rank, int32_t ranks);

  // Points into this object, which must not move until the operation is terminal.
  bp_op op() const;

  // Call after it has succeeded. Returns "" if the output is right, no other bytes in or around it were written, and
  // the input is unchanged. Otherwise returns the error.
  std::string output_error() const;
  std::string input_error() const;
  std::string guard_error() const;

 private:
  // Blocks of a buffer, in elements.
  struct Blocks {
    std::vector<uint64_t> counts;
    std::vector<uint64_t> displs;
    uint64_t total = 0;
  };
  Blocks lay_out(const std::vector<uint64_t>& counts) const;
  uint64_t block_count(int32_t from, int32_t to) const;
  void shape_blocks();
  bool together() const;
  void make_buffers();
  void fill_input();
  // The data of `from` for `to`; `to` matters only in operations with a block per rank.
  void fill_block(int32_t from, int32_t to, void* data, uint64_t count) const;
  std::vector<std::byte> expected_moves() const;
  int32_t contributors() const;  // ranks 0 to this one, whose inputs are in this rank's result
  std::string untouched_error() const;
  std::string reduction_error() const;

  const Shape shape_;
  const int32_t rank_;
  const int32_t ranks_;
  const uint64_t size_;  // of an element, in bytes
  Blocks in_;
  Blocks out_;
  Guarded input_memory_;
  Guarded output_memory_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::vector<std::byte> input_before_;
  std::vector<std::byte> factor_;
};

// An agent for collectives, which numbers them.
class Collectives {
 public:
  explicit Collectives(Rank& rank, const Plan& plan = {});

  Rank& rank() { return rank_; }
  Agent& agent() { return *agent_; }
  // Ends the use of this object but for the operations in flight.
  std::unique_ptr<Agent> take_agent() { return std::move(agent_); }
  // The capability that the agent declares, else the backend's; null if the operation is not native for the memory in
  // use.
  const bp_capability* native(uint32_t op) const;
  // The same, but skips the case if the operation is not native.
  const bp_capability& require_native(uint32_t op);
  std::vector<uint32_t> native_ops() const;  // without send and recv; skips the case if there are none

  // Runs the collective on this rank, records the result in the matrix, and leaves the body if it is wrong.
  void run(const Shape& shape);
  // The shape with a root, BP_OP_SYNC, in place and uneven blocks as the seed has it, the same on all ranks, and with
  // data of its own.
  Shape draw(Shape shape);
  // Submits the call without BP_OP_SYNC, with the next number as `seq`. `call` must outlive the operation.
  Pending submit(const Call& call);
  // Waits for the end and checks the output.
  void finish(Pending& pending, const Call& call, const Shape& shape);
  // A timeout for bp_op, and for waits.
  Nanoseconds enough() const { return rank_.hang_limit(kWaitLimit); }
  uint64_t next_seq() { return ++seq_; }

 private:
  void check(const Call& call, const Shape& shape, const Outcome& outcome);

  Rank& rank_;
  std::unique_ptr<Agent> agent_;
  uint64_t seq_ = 0;
  uint64_t drawn_ = 0;
};

// A dtype and a reduce op that the backend declares: f32 and sum if possible.
uint32_t usual_dtype(const bp_capability& capability);
uint32_t usual_reduce_op(const bp_capability& capability, uint32_t dtype);
// `count` elements of the usual dtype and reduce op.
Shape usual_shape(const bp_capability& capability, uint64_t count);
bool declares(const bp_capability& capability, uint32_t dtype, uint32_t reduce_op);
// All such pairs; the reduce op is 0 for operations that reduce nothing.
std::vector<std::pair<uint32_t, uint32_t>> declared_types(const bp_capability& capability);

}  // namespace backplane::conformance
