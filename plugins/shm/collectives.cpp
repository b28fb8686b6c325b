// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include <algorithm>
#include <cstring>

#include "backplane/sdk/layer.hpp"
#include "pass.hpp"

namespace backplane::shm {
namespace {

// More than any process has; multiplied by the number of ranks it does not overflow.
constexpr uint64_t kMostBytes = UINT64_C(1) << 48;

bool overlap(const Block& one, const Block& other) {
  const auto begin = [](const Block& block) { return reinterpret_cast<uintptr_t>(block.data); };
  return begin(one) < begin(other) + other.size && begin(other) < begin(one) + one.size;
}

}  // namespace

void run_alone(const bp_op& op, const Reductions& reductions) {
  Limit limit(0);
  const Collectives::Call call(op, 1, limit);
  const bool from_block = op.kind == BP_SCATTERV || op.kind == BP_REDUCE_SCATTERV || op.kind == BP_ALL_TO_ALLV;
  const bool to_block = op.kind == BP_GATHERV || op.kind == BP_ALL_GATHERV || op.kind == BP_ALL_TO_ALLV;
  const Block from = from_block ? call.block(0) : call.input;
  const Room to = to_block ? call.room(0) : call.output;
  const uint64_t size = std::min(from.size, to.size);
  const void* const input = from.data;
  const void* const scalar = call.scalar;
  if (scalar == nullptr && !call.averages) return copy(to.data, from.data, size);
  reductions.reduce(op.dtype, op.reduce_op, to.data, {&input, 1}, {&scalar, 1}, size / call.element);
}

void Collectives::run(const bp_op& op, Limit& limit) {
  const Call call(op, world_size_, limit);
  lending_.offer_nothing();
  try {
    perform(call);
  } catch (...) {
    lending_.take_back();
    throw;
  }
}

void Collectives::perform(const Call& call) {
  const bp_op& op = call.op;
  switch (op.kind) {
    case BP_BARRIER:
      return meet(call);
    case BP_BROADCAST:
      return broadcast(call);
    case BP_REDUCE:
    case BP_ALL_REDUCE:
      return all_reduce(call);
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
      return reduce_scatter(call);
    case BP_ALL_TO_ALL:
    case BP_ALL_TO_ALLV:
      return all_to_all(call);
    default:
      throw sdk::Failure(BP_UNSUPPORTED, "shm has no operation of kind " + std::to_string(op.kind));
  }
}

// Nobody returns before all have come.
void Collectives::meet(const Call& call) {
  const uint32_t step = steps_.begin(call.passage);
  steps_.show(step, call.passage);
  for (int32_t rank = 0; rank < world_size_; ++rank) steps_.see(rank, step, 0, call.passage);
}

// The largest number of bytes that the ranks (or only one of them) name.
uint64_t Collectives::agree_on_most(const Call& call, uint64_t mine, int32_t only_rank) {
  const uint32_t step = steps_.begin(call.passage);
  std::memcpy(steps_.mine(step, sizeof mine), &mine, sizeof mine);
  steps_.show(step, call.passage);
  uint64_t most = 0;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (only_rank >= 0 && rank != only_rank) continue;
    uint64_t theirs = 0;
    std::memcpy(&theirs, steps_.see(rank, step, sizeof theirs, call.passage), sizeof theirs);
    if (theirs > kMostBytes) {
      throw sdk::Failure(BP_INVALID, "rank " + std::to_string(rank) + " names a block of more bytes than there can be",
                         rank);
    }
    most = std::max(most, theirs);
  }
  return most;
}

// Of a pattern in which all ranks hear each other, so that they do the same. They try both ways, then tell each other
// how long these took, and from then on take the one whose best try was over sooner.
void Collectives::measured(const Call& call, Pattern& pattern) {
  const uint64_t size = pattern.size;
  if (size <= kEagerLimit) return pass(call, pattern);
  pattern.says_who_reads = true;
  if (!lending_.all_know()) return pass(call, pattern);
  Trial& trial = trials_[call.op.kind];
  if (trial.is_open(size)) {
    pattern.in_process = trial.reads(size);
    pattern.meets = is_crowd_;  // what any rank does takes the time of others
    const int64_t began = steady_ns();
    pass(call, pattern);
    const bool was_as_tried = pattern.in_process ? lending_.only_in_processes() : !lending_.any_input();
    const bool ends_it = pattern.meets || pattern.reads(rank_);  // else it waits only where inputs are lent
    if (was_as_tried) trial.took(size, pattern.in_process, ends_it ? steady_ns() - began : 0);
  } else if (trial.is_settled(size)) {
    pattern.in_process = trial.reads(size);
    pass(call, pattern);
  } else {
    pattern.took = trial.best(size);
    pass(call, pattern);
    const Trial::Best best = is_crowd_ ? lending_.longest_times() : lending_.shortest_times();
    if (trial.settle(size, best) && rank_ == 0 && log_)
      log_(std::string(sdk::op_name(call.op.kind)) + " from " + trial.text(size));
  }
}

// Of a pattern in which only the root is heard. It tries both ways for itself, and the others do as it says. In a crowd
// all meet after each of its tries, so that these are tries of all.
void Collectives::measured_by_root(const Call& call, Pattern& pattern) {
  const uint64_t size = pattern.size;
  const bool is_root = rank_ == call.root;
  pattern.says_who_reads = size > kEagerLimit;
  if (size <= kEagerLimit || (is_root ? !lending_.knows_all() : !is_crowd_)) return pass(call, pattern);
  Trial& trial = trials_[call.op.kind];
  pattern.in_process = is_root && trial.reads(size);
  const int64_t began = trial.is_open(size) ? steady_ns() : 0;
  // What the others do meanwhile on processors of their own costs the root nothing; on its own, it does.
  pattern.meets = is_root && began != 0 && is_crowd_;
  pass(call, pattern);
  const bool is_try = began != 0 && (is_root || lending_.any_meets());
  const bool was_read = lending_.only_in_processes();
  if (!is_try || (!was_read && lending_.any_input()) || !trial.took(size, was_read, steady_ns() - began)) return;
  if (trial.settle(size, trial.best(size)) && log_)
    log_(std::string(sdk::op_name(call.op.kind)) + " from " + trial.text(size));
}

void Collectives::check(const Call& call) const { steps_.check(call.passage); }

void Collectives::fetch(const Call& call, int32_t rank, std::byte* to, const std::byte* from, uint64_t size) const {
  // memcpy, not streaming stores: those copy 64 MiB faster, but a program that reads its result next (all_reduce in
  // place) takes 1.2 to 1.5 times as long from 4 MiB on.
  constexpr uint64_t kPart = UINT64_C(4) << 20;
  for (uint64_t begin = 0; begin < size; begin += kPart) {
    if (begin > 0) check(call);
    lending_.copy(rank, to + begin, from + begin, std::min(kPart, size - begin));
  }
}

void Collectives::return_loans(const Call& call, int32_t only_reader, const std::function<void()>& meanwhile) {
  lending_.check_loans();
  const bool any = lending_.any_input() || lending_.any_meets();
  const uint32_t step = any ? steps_.begin(call.passage) : 0;
  if (any) steps_.show(step, call.passage);
  if (meanwhile) meanwhile();
  if (lending_.input(rank_) == nullptr && !lending_.any_meets()) return;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (only_reader < 0 || only_reader == rank || lending_.any_meets()) steps_.see(rank, step, 0, call.passage);
  }
}

// As pass_at_once, without asking a pattern.
void Collectives::broadcast_at_once(const Call& call) {
  const uint64_t size = call.output.size;
  if (size == 0) return;
  const uint32_t step = steps_.begin(call.passage);
  if (rank_ == call.root) std::memcpy(steps_.mine(step, size), call.input.data, size);
  steps_.show(step, call.passage);
  if (rank_ == call.root) return steps_.claim_next(size);
  std::memcpy(call.output.data, steps_.see(call.root, step, size, call.passage), size);
}

void Collectives::broadcast(const Call& call) {
  if (call.output.size < Lending::kWorthIt) return broadcast_at_once(call);
  Pattern pattern;
  pattern.size = call.output.size;
  pattern.lends = call.input;
  pattern.only_from = call.root;
  pattern.mine = [&call](int32_t) { return call.input; };
  pattern.theirs = [&call](int32_t) { return call.output; };
  pass(call, pattern);
}

void Collectives::gather(const Call& call) {
  Pattern pattern;
  pattern.size = call.varies ? agree_on_most(call, call.input.size, -1) : call.input.size;
  pattern.lends = call.input;
  pattern.only_to = call.root;
  pattern.mine = [&call](int32_t) { return call.input; };
  pattern.theirs = [&call](int32_t from) { return call.room(from); };
  if (rank_ == call.root) pattern.own = {call.room(rank_).data, call.input.size};
  measured(call, pattern);
}

void Collectives::scatter(const Call& call) {
  Pattern pattern;
  pattern.size = call.output.size;
  if (call.varies) pattern.size = agree_on_most(call, rank_ == call.root ? call.most_in() : 0, call.root);
  pattern.each = true;
  pattern.lends = call.input;
  pattern.only_from = call.root;
  pattern.mine = [&call](int32_t to) { return call.block(to); };
  pattern.theirs = [&call](int32_t) { return call.output; };
  if (rank_ == call.root) pattern.own = call.output;
  measured_by_root(call, pattern);
}

void Collectives::all_gather(const Call& call) {
  Pattern pattern;
  pattern.size = call.varies ? call.most_out() : call.input.size;
  pattern.lends = call.input;
  pattern.mine = [&call](int32_t) { return call.input; };
  pattern.theirs = [&call](int32_t from) { return call.room(from); };
  pattern.own = {call.room(rank_).data, call.input.size};
  measured(call, pattern);
}

void Collectives::all_to_all(const Call& call) {
  Pattern pattern;
  pattern.size = call.varies ? agree_on_most(call, call.most_in(), -1) : call.block(0).size;
  pattern.each = true;
  pattern.in_place = overlap(call.input, call.output);
  if (!pattern.in_place) pattern.lends = call.input;  // else it is written over while others read it
  pattern.mine = [&call](int32_t to) { return call.block(to); };
  pattern.theirs = [&call](int32_t from) { return call.room(from); };
  pattern.own = {call.room(rank_).data, std::min(call.room(rank_).size, call.block(rank_).size)};
  measured(call, pattern);
}

}  // namespace backplane::shm
