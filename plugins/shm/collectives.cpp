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

// For patterns in which each rank hears from every other. Ranks try both ways, announce their times, and use the faster
// way from then on. All ranks decide on the same times.
void Collectives::exchange_measured(const Call& call, Pattern& pattern) {
  const uint64_t size = pattern.size;
  if (size <= kEagerLimit) return exchange(call, pattern);
  pattern.announces_readers = true;
  if (!zero_copy_.readers().all_know()) return exchange(call, pattern);
  CopyTuner& tuner = tuners_[call.op.kind];
  if (tuner.is_open(size)) {
    pattern.in_process = tuner.reads(size);
    pattern.wants_barrier = oversubscribed_;  // work of any rank takes time from others
    const int64_t began = steady_ns();
    exchange(call, pattern);
    const bool was_as_tried = pattern.in_process ? zero_copy_.only_in_processes() : !zero_copy_.any_input();
    const bool ends_it = pattern.wants_barrier || pattern.reads(rank_);  // otherwise it waits only for exposed inputs
    if (was_as_tried) tuner.record(size, pattern.in_process, ends_it ? steady_ns() - began : 0);
  } else if (tuner.is_decided(size)) {
    pattern.in_process = tuner.reads(size);
    exchange(call, pattern);
  } else {
    pattern.times = tuner.best(size);
    exchange(call, pattern);
    const CopyTuner::Best best =
        oversubscribed_ ? zero_copy_.readers().longest_times() : zero_copy_.readers().shortest_times();
    if (tuner.decide(size, best) && rank_ == 0 && log_)
      log_(std::string(sdk::op_name(call.op.kind)) + " from " + tuner.text(size));
  }
}

// For patterns in which ranks hear only from the root. The root tries both ways and announces its choice. With more
// ranks than processors each try ends with a barrier, so that the root measures all ranks.
void Collectives::exchange_measured_by_root(const Call& call, Pattern& pattern) {
  const uint64_t size = pattern.size;
  const bool is_root = rank_ == call.root;
  pattern.announces_readers = size > kEagerLimit;
  if (size <= kEagerLimit || (is_root ? !zero_copy_.readers().knows_all() : !oversubscribed_))
    return exchange(call, pattern);
  CopyTuner& tuner = tuners_[call.op.kind];
  pattern.in_process = is_root && tuner.reads(size);
  const int64_t began = tuner.is_open(size) ? steady_ns() : 0;
  // Concurrent work of other ranks matters only if it runs on the root's processor.
  pattern.wants_barrier = is_root && began != 0 && oversubscribed_;
  exchange(call, pattern);
  const bool is_try = began != 0 && (is_root || zero_copy_.any_wants_barrier());
  const bool was_read = zero_copy_.only_in_processes();
  if (!is_try || (!was_read && zero_copy_.any_input()) || !tuner.record(size, was_read, steady_ns() - began)) return;
  if (tuner.decide(size, tuner.best(size)) && log_)
    log_(std::string(sdk::op_name(call.op.kind)) + " from " + tuner.text(size));
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
  exchange_measured(call, pattern);
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
  exchange_measured_by_root(call, pattern);
}

void Collectives::all_gather(const Call& call) {
  Pattern pattern;
  pattern.size = call.varies ? call.max_out() : call.input.size;
  pattern.exposes = call.input;
  pattern.mine = [&call](int32_t) { return call.input; };
  pattern.theirs = [&call](int32_t from) { return call.output_block(from); };
  pattern.own = {call.output_block(rank_).data, call.input.size};
  exchange_measured(call, pattern);
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
  exchange_measured(call, pattern);
}

}  // namespace backplane::shm
