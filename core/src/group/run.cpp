// SPDX-License-Identifier: Apache-2.0
//
// Operations::run: one operation to an agent and back.
#include <algorithm>

#include "backplane/base/grace.hpp"
#include "group/group.hpp"
#include "group/schedule_run.hpp"
#include "interrupt.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {

namespace {

// Throws if the agent cannot match this message by its source or tag.
void check_matching(const Operation& operation) {
  const bp_op& op = operation.op;
  const Agent& agent = *operation.agent;
  if (op.kind == BP_RECV && op.peer == BP_ANY_SOURCE && !agent.matches_by(BP_BACKEND_ANY_SOURCE)) {
    fail(BP_UNSUPPORTED, "recv: backend {} cannot receive from any rank; name the sender, or {}", agent.id(),
         kMatchingHint);
  }
  if (op.kind == BP_RECV && op.tag == BP_ANY_TAG && !agent.matches_by(BP_BACKEND_ANY_TAG)) {
    fail(BP_UNSUPPORTED, "recv: backend {} cannot receive a message with any tag; name the tag, or {}", agent.id(),
         kMatchingHint);
  }
  if (op.tag != 0 && !agent.matches_by(BP_BACKEND_TAGS)) {
    fail(BP_UNSUPPORTED, "{}: backend {} has no tags; use tag 0, or {}", op_name(op.kind), agent.id(), kMatchingHint);
  }
}

}  // namespace

// A recv of a probed message that is refused drops the message.
Operation Operations::prepare(const bp_op& given) const {
  if (!BP_HAS(&given, message) || given.message == nullptr) return prepare_unprobed(given);
  try {
    return prepare_unprobed(given);
  } catch (const Error&) {
    if (const bp_probe_api* const probe = group_.agents().of(BP_HOST).probe()) probe->drop(probe->ctx, given.message);
    throw;
  }
}

Operation Operations::prepare_unprobed(const bp_op& given) const {
  const GroupConfig& config = group_.config();
  Operation operation;
  validate(given, config.rank, config.world_size, &operation);
  bp_op& op = operation.op;
  if (op.input.count > 0 && op.output.count > 0 && op.input.memory != op.output.memory) {
    fail(BP_INVALID, "{}: input and output are in different kinds of memory", op_name(op.kind));
  }
  const uint32_t memory = std::max(op.input.memory, op.output.memory);  // an unused buffer counts as host memory
  Agent& agent = group_.agents().of(operation, memory);
  operation.agent = &agent;
  operation.native = agent.native(op.kind, op.dtype, op.reduce_op, memory, reduces(op.kind));
  const bool is_message = !collective(op.kind);
  if (is_message && !operation.native && agent.native(op.kind, BP_U8, 0, memory, false)) {
    const uint64_t size = dtype_size(op.dtype);
    op.dtype = BP_U8;
    op.input.count *= size;
    op.output.count *= size;
    operation.native = true;
  }
  if (is_message) check_matching(operation);
  if (!operation.native && (is_message || memory != BP_HOST || !agent.supports_schedules())) {
    fail(BP_UNSUPPORTED, "backend {} cannot perform {} on {} memory, and the core cannot complete it", agent.id(),
         describe(operation), memory == BP_HOST ? "cpu" : "cuda");
  }
  if (is_message) op.tag = agent.native_tag(op.tag);
  op.timeout_ns = timeout_or(op.timeout_ns, config.timeout_ns);
  return operation;
}

void Operations::record_start(Operation* operation, uint64_t flags) {
  bp_op& op = operation->op;
  Recorder& recorder = group_.recorder();
  op.flags = flags;
  op.seq = recorder.next_seq(collective(op.kind));
  operation->entry = recorder.start(op, op.seq, operation->count, operation->root_or_peer);
}

// `flatten` inlines the functions of this file and its headers: saving registers around each would be a quarter of the
// instructions of a small operation. This file is compiled without link-time optimisation, with which `flatten` would
// also inline the rest of the core.
[[gnu::flatten]] void Operations::run(const bp_op& given) {
  const auto use = UseGuard::of_active(group_.state());
  Operation operation = prepare(given);
  execute(&operation);
}

void Operations::run_with_tag(const bp_op& given, uint64_t tag) {
  const auto use = UseGuard::of_active(group_.state());
  Operation operation = prepare(given);
  if (!operation.agent->matches_by(BP_BACKEND_TAGS)) {
    fail(BP_UNSUPPORTED, "backend {} has no tags; {}", operation.agent->id(), kMatchingHint);
  }
  operation.op.tag = operation.agent->native_tag(tag);
  execute(&operation);
}

void Operations::execute(Operation* operation) {
  Recorder& recorder = group_.recorder();
  record_start(operation, operation->agent->flag_of_wait());
  try {
    perform(*operation);
  } catch (const Error& e) {
    recorder.finish(operation->entry, e.status());
    throw group_.failures().handle(e, *operation, !operation->native);
  } catch (const std::exception& e) {
    recorder.finish(operation->entry, BP_RESOURCE);
    throw group_.failures().handle(Error(BP_RESOURCE, e.what()), *operation, true);
  }
  recorder.finish(operation->entry, BP_OK);
}

void Operations::perform(const Operation& operation) {
  group_.fingerprints().check(operation);
  const bp_op& op = operation.op;
  if (!operation.native) {
    const GroupConfig& config = group_.config();
    return run_collective(operation, config.rank, config.world_size, op.seq, Deadline::after(op.timeout_ns));
  }
  const Agent& agent = *operation.agent;
  bp_error err;
  bp_error_init(&err);
  bp_work* work = nullptr;
  int32_t status = agent.api().submit(agent.self(), &op, &work, &err);
  if (status == BP_OK && work == nullptr) return;
  if (work != nullptr) {
    status = finish_work(operation, work, Deadline::after(op.timeout_ns), &err);
    agent.api().work_release(agent.self(), work);
  }
  if (status != BP_OK) throw_report(status, err, "");
}

int32_t Operations::finish_work(const Operation& operation, bp_work* work, Deadline deadline, bp_error* err) {
  const Agent& agent = *operation.agent;
  const bp_process_group_api& api = agent.api();
  Failures& failures = group_.failures();
  Error late(BP_TIMEOUT, "timed out");
  int32_t status = BP_AGAIN;
  try {
    status = agent.wait(work, deadline, err);
  } catch (const Error& interrupted) {
    late = interrupted;
  }
  if (status != BP_AGAIN) return status;
  if (collective(operation.op.kind)) {
    // Not cancelled before the abort: other operations in flight would fail and count as the cause.
    const Error cause = failures.with_context(late, operation);
    group_.state().abort(late.status() == BP_TIMEOUT ? failures.diagnosed(cause, operation) : cause);
    api.work_wait(agent.self(), work, BP_NO_TIMEOUT, err);
    return bp_error_set(err, late.status(), 0, -1, late.what());
  }
  api.work_cancel(agent.self(), work);
  status = api.work_wait(agent.self(), work, base::grace::kCancel, err);
  if (status != BP_AGAIN && status != BP_CANCELLED) return status;  // it ended before the cancellation
  if (status == BP_AGAIN) {
    group_.state().abort(failures.with_context(late, operation));
    api.work_wait(agent.self(), work, BP_NO_TIMEOUT, err);
  }
  return bp_error_set(err, late.status(), 0, -1, late.what());
}

}  // namespace backplane::core
