// SPDX-License-Identifier: Apache-2.0
#include "collectives_call.hpp"

#include <algorithm>

#include "../names.hpp"

namespace backplane::conformance {
namespace {

constexpr std::byte kUntouched{0x5E};  // initial value of outputs

constexpr uint64_t kRooted = BP_BIT(BP_BROADCAST) | BP_BIT(BP_REDUCE) | BP_BIT(BP_GATHER) | BP_BIT(BP_GATHERV) |
                             BP_BIT(BP_SCATTER) | BP_BIT(BP_SCATTERV);
constexpr uint64_t kHasCounts = BP_BIT(BP_GATHERV) | BP_BIT(BP_SCATTERV) | BP_BIT(BP_ALL_GATHERV) |
                                BP_BIT(BP_REDUCE_SCATTERV) | BP_BIT(BP_ALL_TO_ALLV);
// Input: one block for each rank; at the root only in scatter.
constexpr uint64_t kManyIn = BP_BIT(BP_SCATTER) | BP_BIT(BP_SCATTERV) | BP_BIT(BP_REDUCE_SCATTER) |
                             BP_BIT(BP_REDUCE_SCATTERV) | BP_BIT(BP_ALL_TO_ALL) | BP_BIT(BP_ALL_TO_ALLV);
constexpr uint64_t kManyOut = BP_BIT(BP_GATHER) | BP_BIT(BP_GATHERV) | BP_BIT(BP_ALL_GATHER) | BP_BIT(BP_ALL_GATHERV) |
                              BP_BIT(BP_ALL_TO_ALL) | BP_BIT(BP_ALL_TO_ALLV);
constexpr uint64_t kToRoot = BP_BIT(BP_REDUCE) | BP_BIT(BP_GATHER) | BP_BIT(BP_GATHERV);
constexpr uint64_t kFromRoot = BP_BIT(BP_BROADCAST) | BP_BIT(BP_SCATTER) | BP_BIT(BP_SCATTERV);

bool is_one_of(uint64_t ops, uint32_t op) { return (ops & BP_BIT(op)) != 0; }

}  // namespace

bool reduces(uint32_t op) { return is_one_of(BP_REDUCTIONS, op); }
bool rooted(uint32_t op) { return is_one_of(kRooted, op); }
bool has_counts(uint32_t op) { return is_one_of(kHasCounts, op); }
bool has_blocks(uint32_t op) { return is_one_of(kManyIn | kManyOut, op); }
bool may_be_in_place(uint32_t op) {
  return op != BP_BARRIER && op != BP_ALL_TO_ALLV && op != BP_BROADCAST;  // the last always is
}

Call::Call(const Shape& shape, int32_t rank, int32_t ranks)
    : shape_(shape), rank_(rank), ranks_(ranks), size_(bp_dtype_size(shape.dtype)) {
  shape_blocks();
  make_buffers();
  factor_.resize(size_);
  if (shape_.reduce_op == BP_PREMUL_SUM) fill_factor(shape_.dtype, factor_.data(), rank_);
  fill_input();
}

// In an uneven v-variant some blocks are empty, and the others have equal lengths only by chance.
uint64_t Call::block_count(int32_t from, int32_t to) const {
  if (!shape_.uneven || !has_counts(shape_.op)) return shape_.count;
  const int32_t which = shape_.op == BP_ALL_TO_ALLV ? from * 3 + to * 5 : (is_one_of(kManyIn, shape_.op) ? to : from);
  const uint64_t scale = (static_cast<uint64_t>(which) * 7 + shape_.name) % 5;
  return shape_.count * scale / 2 + (scale == 0 ? 0 : static_cast<uint64_t>(which));
}

Call::Blocks Call::lay_out(const std::vector<uint64_t>& counts) const {
  Blocks blocks{counts, std::vector<uint64_t>(counts.size()), 0};
  const bool scattered = shape_.uneven && has_counts(shape_.op);
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t which = scattered ? counts.size() - 1 - i : i;
    blocks.displs[which] = blocks.total;
    blocks.total += counts[which] + (scattered ? 1 + which % 3 : 0);
  }
  return blocks;
}

void Call::shape_blocks() {
  const bool at_root = !rooted(shape_.op) || rank_ == shape_.root;
  std::vector<uint64_t> in;
  std::vector<uint64_t> out;
  if (is_one_of(kManyIn, shape_.op)) {
    for (int32_t peer = 0; peer < ranks_ && at_root; ++peer) in.push_back(block_count(rank_, peer));
  } else if (shape_.op != BP_BARRIER && (!is_one_of(kFromRoot, shape_.op) || at_root)) {
    in.push_back(block_count(rank_, rank_));
  }
  if (is_one_of(kManyOut, shape_.op)) {
    for (int32_t peer = 0; peer < ranks_ && at_root; ++peer) out.push_back(block_count(peer, rank_));
  } else if (shape_.op != BP_BARRIER && (!is_one_of(kToRoot, shape_.op) || at_root)) {
    out.push_back(block_count(rooted(shape_.op) ? shape_.root : rank_, rank_));
  }
  in_ = in.size() == 1 && !is_one_of(kManyIn, shape_.op) ? Blocks{in, {0}, in[0]} : lay_out(in);
  out_ = out.size() == 1 && !is_one_of(kManyOut, shape_.op) ? Blocks{out, {0}, out[0]} : lay_out(out);
}

// Whether input and output are one buffer: in place, where the operation allows it on this rank, and always at the root
// of a broadcast.
bool Call::together() const {
  const bool at_root = !rooted(shape_.op) || rank_ == shape_.root;
  return at_root && (shape_.op == BP_BROADCAST || (shape_.in_place && may_be_in_place(shape_.op)));
}

void Call::make_buffers() {
  const uint64_t in = in_.total * size_;
  const uint64_t out = out_.total * size_;
  if (together()) {
    output_memory_ = Guarded(std::max(in, out), shape_.skew);
    input_ = output_ = output_memory_.data();
    const auto own = static_cast<size_t>(rank_);
    const bool many_in = is_one_of(kManyIn, shape_.op);
    const bool many_out = is_one_of(kManyOut, shape_.op);
    if (many_out && !many_in) input_ += out_.displs[own] * size_;
    if (many_in && !many_out) output_ += in_.displs[own] * size_;
  } else if (shape_.adjacent) {
    output_memory_ = Guarded(in + out, shape_.skew);
    const bool input_first = shape_.name % 2 == 0;
    input_ = output_memory_.data() + (input_first ? 0 : out);
    output_ = output_memory_.data() + (input_first ? in : 0);
  } else {
    input_memory_ = Guarded(in, shape_.skew);
    output_memory_ = Guarded(out, shape_.skew);
    input_ = input_memory_.data();
    output_ = output_memory_.data();
  }
  std::fill_n(input_, in, kUntouched);
  std::fill_n(output_memory_.data(), output_memory_.size(), kUntouched);
}

void Call::fill_block(int32_t from, int32_t to, void* data, uint64_t count) const {
  const uint64_t name = message_name(from, is_one_of(kManyIn, shape_.op) ? to : 0, shape_.op, shape_.name);
  if (shape_.operands) return shape_.operands(from, data, count);
  if (!reduces(shape_.op)) return fill_bits(shape_.dtype, data, count, name);
  fill_operands(shape_.dtype, shape_.reduce_op, data, count, name, from, ranks_);
}

void Call::fill_input() {
  for (size_t block = 0; block < in_.counts.size(); ++block) {
    fill_block(rank_, static_cast<int32_t>(block), input_ + in_.displs[block] * size_, in_.counts[block]);
  }
  if (!together()) input_before_.assign(input_, input_ + in_.total * size_);
}

bp_op Call::op() const {
  bp_op op = make_op(shape_.op, shape_.dtype);
  if (shape_.op == BP_BARRIER) return op;
  op.reduce_op = reduces(shape_.op) ? shape_.reduce_op : 0;
  op.root = rooted(shape_.op) ? shape_.root : 0;
  if (in_.total > 0) op.input = {input_, in_.total, BP_HOST, 0};
  if (out_.total > 0) op.output = {output_, out_.total, BP_HOST, 0};
  if (has_counts(shape_.op) && is_one_of(kManyIn, shape_.op) && !in_.counts.empty()) {
    op.in_counts = in_.counts.data();
    op.in_displs = in_.displs.data();
  }
  if (has_counts(shape_.op) && is_one_of(kManyOut, shape_.op) && !out_.counts.empty()) {
    op.out_counts = out_.counts.data();
    op.out_displs = out_.displs.data();
  }
  if (op.reduce_op == BP_PREMUL_SUM && reduces(shape_.op)) op.scalar = factor_.data();
  return op;
}

std::vector<std::byte> Call::expected_moves() const {
  std::vector<std::byte> expected(out_.total * size_, kUntouched);
  for (size_t block = 0; block < out_.counts.size(); ++block) {
    int32_t from = static_cast<int32_t>(block);
    if (!is_one_of(kManyOut, shape_.op)) from = shape_.root;
    fill_block(from, rank_, expected.data() + out_.displs[block] * size_, out_.counts[block]);
  }
  return expected;
}

int32_t Call::contributors() const {
  if (shape_.op == BP_SCAN) return rank_ + 1;
  return shape_.op == BP_EXSCAN ? rank_ : ranks_;
}

// exscan leaves the output of rank 0 as it was; in place it is the input.
std::string Call::untouched_error() const {
  std::vector<std::byte> before(out_.total * size_, kUntouched);
  if (together()) fill_block(rank_, 0, before.data(), out_.total);
  const int64_t wrong = first_difference(shape_.dtype, before.data(), output_, out_.total);
  return wrong < 0 ? "" : fmt::format("element {} of an output that is to stay as it was has changed", wrong);
}

std::string Call::reduction_error() const {
  if (out_.counts.empty()) return "";
  const int32_t ranks = contributors();
  if (ranks == 0) return untouched_error();
  if (shape_.special) return shape_.special(shape_, output_, ranks);
  const uint64_t count = out_.counts[0];
  Reduction reduction(shape_.dtype, shape_.reduce_op, count, ranks);
  if (shape_.additions > 0) reduction.allow_rounding(shape_.additions);
  std::vector<std::byte> operands(count * size_);
  std::vector<std::byte> factor(size_);
  for (int32_t from = 0; from < ranks; ++from) {
    fill_block(from, rank_, operands.data(), count);
    if (shape_.reduce_op == BP_PREMUL_SUM) fill_factor(shape_.dtype, factor.data(), from);
    reduction.add(operands.data(), factor.data());
  }
  return reduction.difference(output_);
}

std::string Call::output_error() const {
  if (shape_.op == BP_BARRIER) return "";
  if (reduces(shape_.op)) return reduction_error();
  const std::vector<std::byte> expected = expected_moves();
  const int64_t wrong = first_difference(shape_.dtype, expected.data(), output_, out_.total);
  if (wrong < 0) return "";
  const auto at = static_cast<uint64_t>(wrong);
  std::string where = "of a gap that belongs to no block";
  for (size_t block = 0; block < out_.counts.size(); ++block) {
    const uint64_t first = out_.displs[block];
    if (at >= first && at < first + out_.counts[block])
      where = fmt::format("of block {}, at its index {}", block, at - first);
  }
  return fmt::format("element {} ({}): expected {}, found {}", at, where,
                     element_text(shape_.dtype, expected.data(), at), element_text(shape_.dtype, output_, at));
}

std::string Call::input_error() const {
  const int64_t wrong = first_difference(shape_.dtype, input_before_.data(), input_, input_before_.size() / size_);
  if (wrong < 0) return "";
  return fmt::format("element {} of the input has changed", wrong);
}

std::string Call::guard_error() const {
  const std::string output = output_memory_.damage();
  if (!output.empty()) return "output: " + output;
  const std::string input = input_memory_.damage();
  return input.empty() ? "" : "input: " + input;
}

std::string shape_text(const Shape& shape) {
  std::string text = op_name(shape.op);
  if (shape.op == BP_BARRIER) return text;
  text += fmt::format(" of {} x {}", shape.count, dtype_name(shape.dtype));
  if (reduces(shape.op)) text += fmt::format(", {}", reduce_op_name(shape.reduce_op));
  if (rooted(shape.op)) text += fmt::format(", root {}", shape.root);
  if (shape.uneven) text += ", uneven blocks";
  if (shape.in_place) text += ", in place";
  if (shape.adjacent) text += ", adjacent buffers";
  if (shape.skew > 0) text += fmt::format(", {} bytes off alignment", shape.skew);
  return text + (shape.sync ? ", BP_OP_SYNC" : "");
}

}  // namespace backplane::conformance
