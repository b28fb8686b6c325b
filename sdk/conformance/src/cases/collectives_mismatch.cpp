// SPDX-License-Identifier: Apache-2.0
//
// Ranks that disagree about a collective. The core finds the culprit. A backend must not crash, must not write outside
// the buffers, and must let every rank return: with an error, with an arbitrary result, or by abort.
#include "../names.hpp"
#include "collectives_call.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

constexpr Nanoseconds kPatience = 120 * kMillisecond;  // until an operation is aborted; scaled
constexpr Nanoseconds kAbort = 500 * kMillisecond;     // process_group.h, ABORT

// Runs `mine` in a separate group, with or without BP_OP_SYNC, and closes the group.
void get_out(Rank& rank, const Shape& mine, const std::string& what) {
  static thread_local uint64_t number = 0;
  Plan plan;
  plan.space = fmt::format("mismatch{}", ++number);
  Collectives group(rank, plan);
  rank.step(fmt::format("{}; on this rank: {}", what, shape_text(mine)));
  const Call call(mine, rank.id(), rank.size());
  bp_op op = call.op();
  op.seq = group.next_seq();
  op.timeout_ns = rank.scaled(kPatience);
  if (mine.sync) op.flags = BP_OP_SYNC;
  const Stopwatch watch;
  Pending pending = group.agent().submit(op);
  if (mine.sync && !pending.in_flight()) {
    rank.check_time(watch.took(), rank.scaled(kPatience + 2 * kSecond), "an operation of ranks that disagree ends");
  }
  const Outcome outcome = pending.wait(rank.scaled(kPatience));
  rank.require(outcome.status != BP_UNSUPPORTED, "an operation that is declared", outcome.text());
  group.agent().abort(BP_CANCELLED, -1, "the ranks disagree");
  const Outcome aborted = pending.wait(rank.scaled(kAbort + 1500 * kMillisecond));
  rank.require(aborted.status != BP_AGAIN, fmt::format("an end within {} ms of abort", kAbort / kMillisecond),
               "it is still in flight");
  pending.release();
  const std::string damage = call.guard_error();
  rank.require(damage.empty(), "nothing written outside the buffers", damage);
  rank.barrier();
  group.agent().close();
  rank.barrier();
}

// `vary` derives the deviating rank's shape from the common one. False: the operation has no such mismatch.
template <typename Vary>
void mismatch(Rank& rank, const char* of, const Vary& vary, const char* none) {
  std::vector<Shape> shapes;
  std::vector<Shape> odd;
  {
    Plan plan;
    plan.space = "ask";
    Collectives group(rank, plan);
    for (const uint32_t op : group.native_ops()) {
      const bp_capability& capability = *group.native(op);
      const Shape shape = usual_shape(capability, 500);
      Shape other = shape;
      if (!vary(group, capability, other)) continue;
      shapes.push_back(shape);
      odd.push_back(other);
    }
  }
  if (shapes.empty()) rank.skip(none);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int32_t odd_rank = static_cast<int32_t>(i) % rank.size();
    for (const bool sync : {false, true}) {
      shapes[i].sync = odd[i].sync = sync;
      get_out(rank, rank.id() == odd_rank ? odd[i] : shapes[i],
              fmt::format("rank {} has another {} than the others in {}", odd_rank, of, op_name(shapes[i].op)));
    }
  }
}

void of_op(Rank& rank) {
  const auto vary = [](Collectives& group, const bp_capability& /*capability*/, Shape& shape) {
    const std::vector<uint32_t> ops = group.native_ops();
    if (ops.size() < 2) return false;
    size_t at = 0;
    while (ops[at] != shape.op) ++at;
    shape = usual_shape(*group.native(ops[(at + 1) % ops.size()]), shape.count);
    return true;
  };
  mismatch(rank, "operation", vary, "fewer than two collectives are native");
}

void of_dtype(Rank& rank) {
  const auto vary = [](Collectives& /*group*/, const bp_capability& capability, Shape& shape) {
    if (shape.op == BP_BARRIER) return false;
    for (const uint32_t dtype : {BP_F64, BP_I64, BP_C128, BP_I32, BP_U8}) {
      if (dtype == shape.dtype || !declares(capability, dtype, shape.reduce_op)) continue;
      shape.dtype = dtype;
      return true;
    }
    return false;
  };
  mismatch(rank, "dtype", vary, "no collective is native for two dtypes");
}

void of_count(Rank& rank, uint64_t count, const char* of) {
  const auto vary = [count](Collectives& /*group*/, const bp_capability& /*capability*/, Shape& shape) {
    shape.count = count;
    return shape.op != BP_BARRIER;
  };
  mismatch(rank, of, vary, "no collective with data is native");
}

void of_larger_count(Rank& rank) { of_count(rank, 70'000, "(larger) count"); }
void of_smaller_count(Rank& rank) { of_count(rank, 3, "(smaller) count"); }

void of_root(Rank& rank) {
  const auto vary = [&rank](Collectives& /*group*/, const bp_capability& /*capability*/, Shape& shape) {
    shape.root = 1 % rank.size();
    return rooted(shape.op);
  };
  mismatch(rank, "root", vary, "no collective with a root is native");
}

}  // namespace

std::vector<Case> collectives_mismatch_cases() {
  const Needs two = {.ops = 0, .ranks = 2};
  const Execution slow = {.deadline = 60 * kSecond};
  return {
      Case("mismatch-op", "ranks in different operations return without a crash or stray write", of_op, two, slow),
      Case("mismatch-dtype", "ranks with different dtypes return without a crash or stray write", of_dtype, two, slow),
      Case("mismatch-count", "ranks of which one has more elements return without a crash or stray write",
           of_larger_count, two, slow),
      Case("mismatch-count-smaller", "ranks of which one has fewer elements return without a crash or stray write",
           of_smaller_count, two, slow),
      Case("mismatch-root", "ranks with different roots return without a crash or stray write", of_root, two, slow),
  };
}

}  // namespace backplane::conformance
