// SPDX-License-Identifier: Apache-2.0
#include "groups.hpp"

#include <tuple>

#include "collectives_call.hpp"

namespace backplane::conformance {
namespace {

// Each declared dtype and reduce op, in place and not, with drawn counts and roots.
void try_matrix(Collectives& group, const bp_capability& capability) {
  for (const auto& [dtype, reduce_op] : declared_types(capability)) {
    for (const bool in_place : {false, true}) {
      if (in_place && !may_be_in_place(capability.op)) continue;
      Shape shape = group.draw({.op = capability.op, .dtype = dtype, .reduce_op = reduce_op});
      shape.count = 1 + group.rank().shared_random()() % 300;
      shape.in_place = in_place;
      group.run(shape);
    }
  }
}

// Each root, small and large counts, with drawn dtypes, and blocks of different sizes where the operation permits them.
void try_counts(Rank& rank, Collectives& group, const bp_capability& capability) {
  const auto types = declared_types(capability);
  const uint32_t usual = usual_dtype(capability);
  Shape shape = {.op = capability.op};
  for (const uint64_t count : {0, 1, 2, 7, 127, 128, 129, 1009}) {
    for (int32_t root = 0; root < (rooted(capability.op) ? rank.size() : 1); ++root) {
      std::tie(shape.dtype, shape.reduce_op) = types[rank.shared_random()() % types.size()];
      shape = group.draw(shape);
      shape.count = count;
      shape.root = root;
      group.run(shape);
    }
  }
  for (const uint64_t count : {4095, 4096, 4097, 16383, 16384, 16385, 65537, 200'003}) {
    std::tie(shape.dtype, shape.reduce_op) = types[rank.shared_random()() % types.size()];
    if (count > 20'000) shape.dtype = usual, shape.reduce_op = usual_reduce_op(capability, usual);
    shape = group.draw(shape);
    shape.count = count;
    group.run(shape);
  }
}

template <uint32_t kOp>
void operation(Rank& rank) {
  Collectives group(rank);
  const bp_capability& capability = group.require_native(kOp);
  try_matrix(group, capability);
  try_counts(rank, group, capability);
}

// No rank leaves a barrier before the last one has entered. Each rank is the last one in turn.
void barrier(Rank& rank) {
  Collectives group(rank);
  group.require_native(BP_BARRIER);
  for (int32_t round = 0; round < 24; ++round) {
    const std::string came = fmt::format("harness/barrier/{}", round);
    const int32_t last = round % rank.size();
    rank.step(fmt::format("barrier {}, to which rank {} comes last", round, last));
    if (rank.id() == last && rank.size() > 1) rank.await_value(fmt::format("barrier-entered/{}", round));
    rank.world().add(came, 1);
    bp_op op = make_op(BP_BARRIER);
    op.seq = group.next_seq();
    op.timeout_ns = group.enough();
    if (round % 2 == 1) {
      op.flags = BP_OP_SYNC;
      if (rank.id() == (last + 1) % rank.size()) rank.publish(fmt::format("barrier-entered/{}", round), "soon");
    }
    Pending pending = group.agent().submit(op);
    if (round % 2 == 0 && rank.id() == (last + 1) % rank.size()) {
      const Outcome early = rank.size() > 1 ? pending.wait(rank.scaled(5 * kMillisecond)) : Outcome();
      rank.publish(fmt::format("barrier-entered/{}", round), "yes");
      rank.require(rank.size() == 1 || early.status == BP_AGAIN, fmt::format("BP_AGAIN as rank {} has not come", last),
                   early.text());
    }
    const Outcome outcome = pending.wait(group.enough());
    const std::string arrived = rank.world().look(came).value_or("0");
    const bool passed = outcome.ok() && arrived == std::to_string(rank.size());
    rank.cell(BP_BARRIER, 0, 0, BP_HOST, passed);
    rank.require_ok(outcome, "barrier");
    rank.require(passed, fmt::format("all {} ranks have come when the barrier ends", rank.size()), arrived + " have");
    pending.release();
  }
}

template <uint32_t kOp>
Case operation_case(const char* name, const char* about) {
  return Case(name, about, operation<kOp>, {.ops = BP_BIT(kOp)}, {.deadline = 30 * kSecond});
}

}  // namespace

std::vector<Case> collectives_operation_cases() {
  return {
      Case("barrier", "no rank leaves a barrier before all have entered", barrier, {.ops = BP_BIT(BP_BARRIER)}),
      operation_case<BP_BROADCAST>("broadcast", "every rank gets the root's elements, bit for bit"),
      operation_case<BP_REDUCE>("reduce", "the root gets the reduction of all inputs"),
      operation_case<BP_ALL_REDUCE>("all-reduce", "every rank gets the reduction of all inputs"),
      operation_case<BP_GATHER>("gather", "the root gets every rank's block, in rank order"),
      operation_case<BP_GATHERV>("gatherv", "the root gets every rank's block, of its size and at its place"),
      operation_case<BP_SCATTER>("scatter", "every rank gets its block of the root's input"),
      operation_case<BP_SCATTERV>("scatterv", "every rank gets its block of the root's input, of its size and place"),
      operation_case<BP_ALL_GATHER>("all-gather", "every rank gets every rank's block, in rank order"),
      operation_case<BP_ALL_GATHERV>("all-gatherv", "every rank gets every rank's block, of its size and at its place"),
      operation_case<BP_REDUCE_SCATTER>("reduce-scatter", "every rank gets its block of the reduction of all inputs"),
      operation_case<BP_REDUCE_SCATTERV>("reduce-scatterv",
                                         "every rank gets its block, of its size, of the reduction of all inputs"),
      operation_case<BP_ALL_TO_ALL>("all-to-all", "every rank gets its block from every rank, in rank order"),
      operation_case<BP_ALL_TO_ALLV>("all-to-allv",
                                     "every rank gets its block from every rank, of its size and at its place"),
      operation_case<BP_SCAN>("scan", "every rank gets the reduction of the inputs of ranks 0 to itself"),
      operation_case<BP_EXSCAN>("exscan", "every rank gets the reduction of all ranks before it, rank 0 nothing"),
  };
}

}  // namespace backplane::conformance
