// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include <algorithm>
#include <cstring>

#include "backplane/sdk/layer.hpp"
#include "exchange.hpp"

namespace backplane::shm {
namespace {

// More than any process has. The product with the number of ranks does not overflow.
constexpr uint64_t kMaxBytes = UINT64_C(1) << 48;

bool overlap(const Block& one, const Block& other) {
  const auto begin = [](const Block& block) { return reinterpret_cast<uintptr_t>(block.data); };
  return begin(one) < begin(other) + other.size && begin(other) < begin(one) + one.size;
}

}  // namespace

void run_alone(const bp_op& op, const Reductions& reductions) {
  LazyDeadline deadline(0);
  const Call call(op, 1, deadline);
  const bool from_block = op.kind == BP_SCATTERV || op.kind == BP_REDUCE_SCATTERV || op.kind == BP_ALL_TO_ALLV;
  const bool to_block = op.kind == BP_GATHERV || op.kind == BP_ALL_GATHERV || op.kind == BP_ALL_TO_ALLV;
  const Block from = from_block ? call.block(0) : call.input;
  const OutputBlock to = to_block ? call.output_block(0) : call.output;
  const uint64_t size = std::min(from.size, to.size);
  const void* const input = from.data;
  const void* const scalar = call.scalar;
  if (scalar == nullptr && !call.averages) return copy(to.data, from.data, size);
  reductions.reduce(op.dtype, op.reduce_op, to.data, {&input, 1}, {&scalar, 1}, size / call.element);
}

void Collectives::run(const bp_op& op, LazyDeadline& deadline) {
  const Call call(op, world_size_, deadline);
  zero_copy_.expose_nothing();
  try {
    perform(call);
  } catch (...) {
    zero_copy_.revoke();
    throw;
  }
}

void Collectives::perform(const Call& call) {
  const bp_op& op = call.op;
  switch (op.kind) {
    case BP_BARRIER:
      return steps_.barrier(call.context);
    case BP_BROADCAST:
      return broadcast(call);
    case BP_REDUCE:
    case BP_ALL_REDUCE:
      return reducing_.all_reduce(call);
    case BP_GATHER:
    case BP_GATHERV:
      return gather(call);
    case BP_SCATTER:
    case BP_SCATTERV:
      return scatter(call);
    case BP_ALL_GATHER:
    case BP_ALL_GATHERV:
      return all_gather(call);
    case BP_REDUCE_SCATTER:
    case BP_REDUCE_SCATTERV:
      return reducing_.reduce_scatter(call);
    case BP_ALL_TO_ALL:
    case BP_ALL_TO_ALLV:
      return all_to_all(call);
    default:
      throw sdk::Failure(BP_UNSUPPORTED, "shm does not support operations of kind " + std::to_string(op.kind));
  }
}

// The maximum of a size over all ranks, or the size of one rank.
uint64_t Collectives::agree_on_max(const Call& call, uint64_t mine, int32_t only_rank) {
  const uint32_t step = steps_.begin(call.context);
  std::memcpy(steps_.own_data(step, sizeof mine), &mine, sizeof mine);
  steps_.publish(step, call.context);
  uint64_t max_size = 0;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (only_rank >= 0 && rank != only_rank) continue;
    uint64_t theirs = 0;
    std::memcpy(&theirs, steps_.wait_for(rank, step, sizeof theirs, call.context), sizeof theirs);
    if (theirs > kMaxBytes) {
      throw sdk::Failure(BP_INVALID, "rank " + std::to_string(rank) + " announced an impossible block size", rank);
    }
    max_size = std::max(max_size, theirs);
  }
  return max_size;
}

// Whether each rank can read the processes of all others. The ranks agree on it once, in the first exchange of blocks
// that may be read, unless the options of one exclude it.
bool Collectives::all_can_read(const Call& call) {
  if (!all_can_read_ && (cross_ == nullptr || !steps_.peers().all_may_read())) all_can_read_ = false;
  if (!all_can_read_) {
    steps_.barrier(call.context);  // all have started, so that they can be read
    const bool can_read = cross_->can_read_all();
    if (!can_read && log_) log_(cross_->refusal());
    all_can_read_ = agree_on_max(call, can_read ? 0 : 1, -1) == 0;
  }
  return *all_can_read_;
}

// For inputs that may be read in processes.
void Collectives::exchange_readable(const Call& call, Pattern& pattern) {
  pattern.in_process = pattern.size > kEagerLimit && all_can_read(call);
  exchange(call, pattern);
}

// exchange_in_one_step without the indirect calls of a pattern.
void Collectives::broadcast_in_one_step(const Call& call) {
  const uint64_t size = call.output.size;
  if (size == 0) return;
  const uint32_t step = steps_.begin(call.context);
  if (rank_ == call.root) std::memcpy(steps_.own_data(step, size), call.input.data, size);
  steps_.publish(step, call.context);
  if (rank_ == call.root) return steps_.prefetch_next(size);
  std::memcpy(call.output.data, steps_.wait_for(call.root, step, size, call.context), size);
}

void Collectives::broadcast(const Call& call) {
  if (call.output.size < ZeroCopy::kMinBytes) return broadcast_in_one_step(call);
  Pattern pattern;
  pattern.size = call.output.size;
  pattern.exposes = call.input;
  pattern.only_from = call.root;
  pattern.mine = [&call](int32_t) { return call.input; };
  pattern.theirs = [&call](int32_t) { return call.output; };
  exchange(call, pattern);
}

void Collectives::gather(const Call& call) {
  Pattern pattern;
  pattern.size = call.varies ? agree_on_max(call, call.input.size, -1) : call.input.size;
  pattern.exposes = call.input;
  pattern.only_to = call.root;
  pattern.mine = [&call](int32_t) { return call.input; };
  pattern.theirs = [&call](int32_t from) { return call.output_block(from); };
  if (rank_ == call.root) pattern.own = {call.output_block(rank_).data, call.input.size};
  exchange_readable(call, pattern);
}

void Collectives::scatter(const Call& call) {
  Pattern pattern;
  pattern.size = call.output.size;
  if (call.varies) pattern.size = agree_on_max(call, rank_ == call.root ? call.max_in() : 0, call.root);
  pattern.each = true;
  pattern.exposes = call.input;
  pattern.only_from = call.root;
  pattern.mine = [&call](int32_t to) { return call.block(to); };
  pattern.theirs = [&call](int32_t) { return call.output; };
  if (rank_ == call.root) pattern.own = call.output;
  exchange_readable(call, pattern);
}

void Collectives::all_gather(const Call& call) {
  Pattern pattern;
  pattern.size = call.varies ? call.max_out() : call.input.size;
  pattern.exposes = call.input;
  pattern.mine = [&call](int32_t) { return call.input; };
  pattern.theirs = [&call](int32_t from) { return call.output_block(from); };
  pattern.own = {call.output_block(rank_).data, call.input.size};
  exchange_readable(call, pattern);
}

void Collectives::all_to_all(const Call& call) {
  Pattern pattern;
  pattern.size = call.varies ? agree_on_max(call, call.max_in(), -1) : call.block(0).size;
  pattern.each = true;
  pattern.in_place = overlap(call.input, call.output);
  if (!pattern.in_place) pattern.exposes = call.input;  // otherwise it is overwritten while others read it
  pattern.mine = [&call](int32_t to) { return call.block(to); };
  pattern.theirs = [&call](int32_t from) { return call.output_block(from); };
  pattern.own = {call.output_block(rank_).data, std::min(call.output_block(rank_).size, call.block(rank_).size)};
  exchange_readable(call, pattern);
}

}  // namespace backplane::shm
