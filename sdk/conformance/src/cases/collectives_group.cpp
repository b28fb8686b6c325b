// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../arithmetic.hpp"
#include "../names.hpp"
#include "collectives_call.hpp"

namespace backplane::conformance {

bool declares(const bp_capability& capability, uint32_t dtype, uint32_t reduce_op) {
  if ((capability.dtypes & BP_BIT(dtype)) == 0) return false;
  if (!reduces(capability.op)) return true;
  if (reduce_op == BP_AVG && (capability.op == BP_SCAN || capability.op == BP_EXSCAN))
    return false;  // the core refuses it
  return (capability.reduce_ops & BP_BIT(reduce_op)) != 0 && goes_together(dtype, reduce_op);
}

std::vector<std::pair<uint32_t, uint32_t>> declared_types(const bp_capability& capability) {
  std::vector<std::pair<uint32_t, uint32_t>> types;
  for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) {
    for (uint32_t reduce_op = 0; reduce_op < (reduces(capability.op) ? BP_REDUCE_OP_COUNT : 1); ++reduce_op) {
      if (declares(capability, dtype, reduce_op)) types.emplace_back(dtype, reduce_op);
    }
  }
  return types;
}

uint32_t usual_reduce_op(const bp_capability& capability, uint32_t dtype) {
  for (uint32_t reduce_op = 0; reduce_op < BP_REDUCE_OP_COUNT; ++reduce_op) {
    if (declares(capability, dtype, reduce_op)) return reduce_op;
  }
  return BP_REDUCE_OP_COUNT;
}

uint32_t usual_dtype(const bp_capability& capability) {
  for (const uint32_t dtype : {BP_F32, BP_I32, BP_U8}) {
    if (declares(capability, dtype, usual_reduce_op(capability, dtype))) return dtype;
  }
  for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) {
    if (declares(capability, dtype, usual_reduce_op(capability, dtype))) return dtype;
  }
  return BP_U8;
}

Shape usual_shape(const bp_capability& capability, uint64_t count) {
  Shape shape = {.op = capability.op, .count = count};
  if (shape.op == BP_BARRIER) return shape;
  shape.dtype = usual_dtype(capability);
  shape.reduce_op = usual_reduce_op(capability, shape.dtype);
  return shape;
}

Collectives::Collectives(Rank& rank, const Plan& plan) : rank_(rank), agent_(open_together(rank, plan)) {}

const bp_capability* Collectives::native(uint32_t op) const {
  const bp_agent& agent = agent_->raw();
  const bp_backend& backend = rank_.backend();
  const bool narrowed = agent.capabilities != nullptr;
  const bp_capability* const* all = narrowed ? agent.capabilities : backend.capabilities;
  const uint32_t count = narrowed ? agent.capability_count : backend.capability_count;
  for (uint32_t i = 0; i < count; ++i) {
    if (all[i]->op == op && (op == BP_BARRIER || (all[i]->memory & rank_.memory()) != 0)) return all[i];
  }
  return nullptr;
}

const bp_capability& Collectives::require_native(uint32_t op) {
  const bp_capability* capability = native(op);
  if (capability == nullptr) rank_.skip(fmt::format("{} is not native for the memory of this check", op_name(op)));
  return *capability;
}

std::vector<uint32_t> Collectives::native_ops() const {
  std::vector<uint32_t> ops;
  for (uint32_t op = 0; op < BP_OP_COUNT; ++op) {
    if (op != BP_SEND && op != BP_RECV && native(op) != nullptr) ops.push_back(op);
  }
  if (ops.empty()) rank_.skip("no collective is native for host memory");
  return ops;
}

Shape Collectives::draw(Shape shape) {
  const uint64_t word = rank_.shared_random()();
  shape.root = rooted(shape.op) ? static_cast<int32_t>((word >> 8) % static_cast<uint64_t>(rank_.size())) : 0;
  shape.sync = (word & 1) != 0;
  shape.in_place = (word & 2) != 0 && may_be_in_place(shape.op);
  shape.uneven = (word & 12) != 0;
  shape.name = ++drawn_;
  return shape;
}

Pending Collectives::submit(const Call& call) {
  bp_op op = call.op();
  op.seq = next_seq();
  op.timeout_ns = enough();
  return agent_->submit(op);
}

void Collectives::check(const Call& call, const Shape& shape, const Outcome& outcome) {
  const std::string wrong[] = {outcome.ok() ? "" : outcome.text(), outcome.ok() ? call.output_error() : "",
                               outcome.ok() ? call.input_error() : "", call.guard_error()};
  const std::string expected[] = {"success", "the right output", "an input as it was", "nothing written outside"};
  const std::string* const error =
      std::find_if_not(std::begin(wrong), std::end(wrong), [](const std::string& text) { return text.empty(); });
  rank_.cell(shape.op, shape.op == BP_BARRIER ? 0 : shape.dtype, reduces(shape.op) ? shape.reduce_op : 0, BP_HOST,
             error == std::end(wrong));
  if (error == std::end(wrong)) return;
  rank_.fail(fmt::format("{} ({})", expected[error - wrong], shape_text(shape)), *error);
}

void Collectives::finish(Pending& pending, const Call& call, const Shape& shape) {
  const Outcome outcome = pending.wait(enough());
  if (outcome.status == BP_AGAIN) {
    rank_.cell(shape.op, shape.dtype, shape.reduce_op, BP_HOST, false);
    rank_.fail(fmt::format("an end within {} ms ({})", enough() / kMillisecond, shape_text(shape)),
               "it is still in flight");
  }
  pending.release();
  check(call, shape, outcome);
}

void Collectives::run(const Shape& shape) {
  rank_.step(shape_text(shape));
  const Call call(shape, agent_->rank(), agent_->size());
  bp_op op = call.op();
  op.seq = next_seq();
  op.timeout_ns = enough();
  if (shape.sync) op.flags = BP_OP_SYNC;
  Pending pending = agent_->submit(op);
  finish(pending, call, shape);
}

}  // namespace backplane::conformance
