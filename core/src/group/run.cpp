// SPDX-License-Identifier: Apache-2.0
//
// The way of an operation down to an agent, and of one that blocks back up.
#include <algorithm>

#include "group/exchange.hpp"
#include "group/group.hpp"
#include "group/pass.hpp"
#include "interrupt.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {

Agent& Group::agent_of(uint32_t memory) const {
  Agent* const agent = by_memory_[memory];
  if (agent == nullptr) {
    fail(BP_INVALID, "group '{}' has no backend for {} memory; name one, as in cpu:gloo,cuda:nccl", config_.name,
         memory == BP_HOST ? "cpu" : "cuda");
  }
  return *agent;
}

Agent& Group::agent_for(const ValidOp& valid, uint32_t memory) const {
  const bp_op& op = valid.op;
  if (op.kind == BP_BARRIER) return *agents_.front();
  for (const Exempt& each : exempt_[op.kind]) {
    const uint64_t bytes = valid.per_rank * dtype_size(op.dtype);
    const bool is_in_range = bytes >= each.range.from && bytes < each.range.end;
    if (memory != BP_HOST || !is_in_range) continue;
    const bool is_able =
        each.agent->can_complete() || each.agent->native(op.kind, op.dtype, op.reduce_op, memory, reduces(op.kind));
    if (is_able) return *each.agent;
  }
  return agent_of(memory);
}

// A message that a probe took is gone with a recv that is refused.
Group::Plan Group::plan(const bp_op& given) const {
  if (!BP_HAS(&given, message) || given.message == nullptr) return plan_one(given);
  try {
    return plan_one(given);
  } catch (const Error&) {
    if (const bp_probe_api* const probe = agent_of(BP_HOST).probe()) probe->drop(probe->ctx, given.message);
    throw;
  }
}

Group::Plan Group::plan_one(const bp_op& given) const {
  Plan plan;
  ValidOp& valid = plan.valid;
  validate(given, config_.rank, config_.world_size, &valid);
  bp_op& op = valid.op;
  if (op.input.count > 0 && op.output.count > 0 && op.input.memory != op.output.memory) {
    fail(BP_INVALID, "{}: input and output live in different kinds of memory", op_name(op.kind));
  }
  const uint32_t memory = std::max(op.input.memory, op.output.memory);  // an unused buffer counts as host memory
  Agent& agent = agent_for(valid, memory);
  plan.agent = &agent;
  plan.native = agent.native(op.kind, op.dtype, op.reduce_op, memory, reduces(op.kind));
  const bool message = !collective(op.kind);
  plan.count = valid.count;
  if (message && !plan.native && agent.native(op.kind, BP_U8, 0, memory, false)) {
    const uint64_t size = dtype_size(op.dtype);
    op.dtype = BP_U8;
    op.input.count *= size;
    op.output.count *= size;
    plan.native = true;
  }
  if (op.kind == BP_RECV && op.peer == BP_ANY_SOURCE && !agent.matches_by(BP_BACKEND_ANY_SOURCE)) {
    fail(BP_UNSUPPORTED, "recv: backend {} cannot receive from any rank; name the sender, or {}", agent.id(),
         kMatchingHint);
  }
  if (op.kind == BP_RECV && op.tag == BP_ANY_TAG && !agent.matches_by(BP_BACKEND_ANY_TAG)) {
    fail(BP_UNSUPPORTED, "recv: backend {} cannot receive a message with any tag; name the tag, or {}", agent.id(),
         kMatchingHint);
  }
  if (message && op.tag != 0 && !agent.matches_by(BP_BACKEND_TAGS)) {
    fail(BP_UNSUPPORTED, "{}: backend {} has no tags; use tag 0, or {}", op_name(op.kind), agent.id(), kMatchingHint);
  }
  if (!plan.native && (message || memory != BP_HOST || !agent.can_complete())) {
    fail(BP_UNSUPPORTED, "backend {} cannot perform {} on {} memory, and the core cannot complete it", agent.id(),
         describe(op, plan.count, valid.other), memory == BP_HOST ? "cpu" : "cuda");
  }
  if (message) op.tag = agent.native_tag(op.tag);
  op.timeout_ns = timeout_or(op.timeout_ns, config_.timeout_ns);
  return plan;
}

uint64_t Group::number(Plan* plan, uint64_t flags) {
  bp_op& op = plan->valid.op;
  op.flags = flags;
  op.seq = (collective(op.kind) ? collectives_ : messages_).fetch_add(1, std::memory_order_relaxed) + 1;
  return recorder_.start(op, op.seq, plan->count, plan->valid.other);
}

// What this file and its headers have of what is called here is drawn in: saving registers around each piece would be a
// quarter of the instructions of a small operation. Link-time optimisation would draw in the rest of the core, too, so
// that this file is compiled without.
[[gnu::flatten]] void Group::run(const bp_op& given) {
  const Pass pass(*this);
  Plan plan = this->plan(given);
  execute(&plan);
}

void Group::run_with_tag(const bp_op& given, uint64_t tag) {
  const Pass pass(*this);
  Plan plan = this->plan(given);
  if (!plan.agent->matches_by(BP_BACKEND_TAGS)) {
    fail(BP_UNSUPPORTED, "backend {} has no tags; {}", plan.agent->id(), kMatchingHint);
  }
  plan.valid.op.tag = plan.agent->native_tag(tag);
  execute(&plan);
}

void Group::execute(Plan* planned) {
  Plan& plan = *planned;
  const uint64_t entry = number(&plan, Interruptible::active() ? 0 : BP_OP_SYNC);
  try {
    perform(*plan.agent, plan.valid, plan.native);
  } catch (const Error& e) {
    recorder_.finish(entry, e.status());
    throw failure(e, plan.valid, !plan.native);
  } catch (const std::exception& e) {
    recorder_.finish(entry, BP_RESOURCE);
    throw failure(Error(BP_RESOURCE, e.what()), plan.valid, true);
  }
  recorder_.finish(entry, BP_OK);
}

void Group::perform(Agent& agent, const ValidOp& valid, bool native) {
  const int64_t timeout_ns = valid.op.timeout_ns;
  check_fingerprint(agent, valid);
  if (!native) {
    return run_collective(agent, valid, config_.rank, config_.world_size, valid.op.seq, Deadline::after(timeout_ns));
  }
  bp_error err;
  bp_error_init(&err);
  bp_work* work = nullptr;
  int32_t status = agent.api().submit(agent.self(), &valid.op, &work, &err);
  if (status == BP_OK && work == nullptr) return;
  if (work != nullptr) {
    status = finish_work(agent, work, Deadline::after(timeout_ns), valid, &err);
    agent.api().work_release(agent.self(), work);
  }
  if (status != BP_OK) throw_report(status, err, "");
}

int32_t Group::finish_work(Agent& agent, bp_work* work, Deadline deadline, const ValidOp& valid, bp_error* err) {
  const bp_process_group_api& api = agent.api();
  Error late(BP_TIMEOUT, "timed out");
  int32_t status = BP_AGAIN;
  try {
    status = agent.wait(work, deadline, err);
  } catch (const Error& interrupted) {
    late = interrupted;
  }
  if (status != BP_AGAIN) return status;
  if (collective(valid.op.kind)) {
    // Not cancelled first: what else is in flight would end by that, and be taken for the cause.
    const Error cause = labelled(late, valid);
    abort(late.status() == BP_TIMEOUT ? agreed(cause, valid) : cause);
    api.work_wait(agent.self(), work, BP_NO_TIMEOUT, err);
    return bp_error_set(err, late.status(), 0, -1, late.what());
  }
  api.work_cancel(agent.self(), work);
  status = api.work_wait(agent.self(), work, base::grace::kCancel, err);
  if (status != BP_AGAIN && status != BP_CANCELLED) return status;  // it ended by itself after all
  if (status == BP_AGAIN) {
    abort(labelled(late, valid));
    api.work_wait(agent.self(), work, BP_NO_TIMEOUT, err);
  }
  return bp_error_set(err, late.status(), 0, -1, late.what());
}

}  // namespace backplane::core
