// SPDX-License-Identifier: Apache-2.0
#include "group/operations.hpp"

#include <utility>

#include "backplane/base/grace.hpp"
#include "group/group.hpp"
#include "group/native_request.hpp"
#include "group/task_request.hpp"
#include "group/watchdog.hpp"

namespace backplane::core {

Operations::Operations(Group& group, const GroupConfig& config, GroupState& state, Agents& agents, Recorder& recorder,
                       Failures& failures, const FingerprintCheck& fingerprints)
    : group_(group),
      config_(config),
      state_(state),
      agents_(agents),
      recorder_(recorder),
      failures_(failures),
      fingerprints_(fingerprints),
      watchdog_(std::make_shared<Watchdog>(in_flight_, failures_)) {}

std::vector<std::shared_ptr<Request>> Operations::submit(const bp_op* const* ops, size_t count,
                                                         const std::function<void()>& unpack) {
  const OperationGuard guard(state_);
  std::vector<Operation> operations;  // none is started unless all are valid
  for (size_t i = 0; i < count; ++i) operations.push_back(prepare(*ops[i]));
  std::vector<std::shared_ptr<Request>> requests;
  try {
    for (size_t i = 0; i < count; ++i) {
      const bool more = i + 1 < count && begin_together(operations[i], operations[i + 1]);
      record_start(&operations[i], more ? BP_OP_MORE : 0);
      requests.push_back(start(std::move(operations[i]), unpack));
    }
  } catch (...) {
    take_back(requests);
    throw;
  }
  return requests;
}

// Two that follow each other in a batch: may the backend be told?
bool Operations::begin_together(const Operation& one, const Operation& next) {
  const bool are_messages = !collective(one.op.kind) && !collective(next.op.kind);
  return are_messages && one.agent == next.agent && one.agent->device() != nullptr;
}

// Ends requests that the caller will not learn of. Afterwards their buffers are free.
void Operations::take_back(const std::vector<std::shared_ptr<Request>>& requests) {
  for (const auto& request : requests) request->cancel();
  if (await_all(requests, Deadline::after(base::grace::kCancel))) return;
  state_.abort(Error(BP_CANCELLED, "a batch failed to start and could not be taken back"));
  await_all(requests, Deadline::never());
}

std::shared_ptr<Request> Operations::start(Operation operation, const std::function<void()>& unpack) {
  const uint64_t entry = operation.entry;
  const bool native = operation.native;
  const bool is_task = !native || fingerprints_.precedes(operation.op);
  const std::shared_ptr<Operations> self(group_.shared_from_this(), this);
  std::shared_ptr<Request> request;
  const auto failed = [&](const Error& error, bool begun) {
    recorder_.finish(entry, error.status());
    return failures_.handle(error, request ? request->operation() : operation, begun);
  };
  try {
    if (is_task) {
      const auto task = std::make_shared<TaskRequest>(self, std::move(operation), unpack);
      request = task;
      start_task(task);
    } else {
      const auto made = std::make_shared<NativeRequest>(self, std::move(operation), unpack);
      request = made;
      start_native(made);
    }
    return request;
  } catch (const Error& e) {
    throw failed(e, !native);
  } catch (const std::exception& e) {  // no memory, no thread
    throw failed(Error(BP_RESOURCE, e.what()), true);
  }
}

void Operations::start_task(const std::shared_ptr<TaskRequest>& request) {
  watchdog_->expect(request->watchdog_deadline());
  in_flight_.add(request);
  try {
    executor_.add([request] { request->perform(); });
  } catch (...) {  // no thread
    in_flight_.remove(request.get());
    throw;
  }
}

void Operations::start_native(const std::shared_ptr<NativeRequest>& request) {
  if (request->start()) return recorder_.finish(request->operation().entry, BP_OK);
  in_flight_.add(request);
  try {
    watchdog_->expect(request->watchdog_deadline());  // only now: an operation that is done at once needs no thread
  } catch (const Error&) {
    take_back({request});
    throw;
  }
}

void Operations::perform_task(const Operation& operation) {
  const OperationGuard guard(state_);
  perform(operation);
}

void Operations::finish(Request& request, int32_t status) {
  recorder_.finish(request.operation().entry, status);
  in_flight_.remove(&request);
}

void Operations::close() {
  executor_.stop();
  in_flight_.await_all();
  watchdog_->stop();
}

}  // namespace backplane::core
