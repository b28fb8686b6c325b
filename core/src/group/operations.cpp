// SPDX-License-Identifier: Apache-2.0
#include "group/operations.hpp"

#include <utility>

#include "backplane/base/grace.hpp"
#include "group/group.hpp"
#include "group/native_request.hpp"
#include "group/task_request.hpp"
#include "group/watchdog.hpp"

namespace backplane::core {

namespace {

// Whether the backend may start an operation of a batch together with the next one.
bool begin_together(const Operation& operation, const Operation& next) {
  const bool are_messages = !collective(operation.op.kind) && !collective(next.op.kind);
  return are_messages && operation.agent == next.agent && operation.agent->device() != nullptr;
}

}  // namespace

Operations::Operations(Group& group)
    : group_(group), watchdog_(std::make_shared<Watchdog>(in_flight_, group.failures())) {}

std::vector<std::shared_ptr<Request>> Operations::submit(const bp_op* const* ops, size_t count,
                                                         const std::function<void()>& unpack) {
  const auto use = UseGuard::of_active(group_.state());
  std::vector<Operation> operations;
  for (size_t i = 0; i < count; ++i) operations.push_back(prepare(*ops[i]));
  std::vector<std::shared_ptr<Request>> requests;
  try {
    for (size_t i = 0; i < count; ++i) {
      const bool more = i + 1 < count && begin_together(operations[i], operations[i + 1]);
      record_start(&operations[i], more ? BP_OP_MORE : 0);
      requests.push_back(start(std::move(operations[i]), unpack));
    }
  } catch (...) {
    cancel_and_wait(requests);
    throw;
  }
  return requests;
}

// Ends requests that are not returned to the caller. Afterwards their buffers are free.
void Operations::cancel_and_wait(const std::vector<std::shared_ptr<Request>>& requests) {
  for (const auto& request : requests) request->cancel();
  if (await_all(requests, Deadline::after(base::grace::kCancel))) return;
  group_.state().abort(
      Error(BP_CANCELLED, "a batch failed to start, and its started operations could not be cancelled"));
  await_all(requests, Deadline::never());
}

std::shared_ptr<Request> Operations::start(Operation operation, const std::function<void()>& unpack) {
  const uint64_t entry = operation.entry;
  const bool native = operation.native;
  const bool is_task = !native || group_.fingerprints().precedes(operation.op);
  std::shared_ptr<Request> request;
  const auto failed = [&](const Error& error, bool begun) {
    group_.recorder().finish(entry, error.status());
    return group_.failures().handle(error, request ? request->operation() : operation, begun);
  };
  try {
    if (is_task) {
      const auto task = std::make_shared<TaskRequest>(group_.shared_from_this(), std::move(operation), unpack);
      request = task;
      start_task(task);
    } else {
      const auto made = std::make_shared<NativeRequest>(group_.shared_from_this(), std::move(operation), unpack);
      request = made;
      start_native(made);
    }
    return request;
  } catch (const Error& e) {
    throw failed(e, !native);
  } catch (const std::exception& e) {  // out of memory or threads
    throw failed(Error(BP_RESOURCE, e.what()), true);
  }
}

void Operations::start_task(const std::shared_ptr<TaskRequest>& request) {
  watchdog_->expect(request->watchdog_deadline());
  in_flight_.add(request);
  try {
    executor_.add([request] { request->perform(); });
  } catch (...) {  // out of threads
    in_flight_.remove(request.get());
    throw;
  }
}

void Operations::start_native(const std::shared_ptr<NativeRequest>& request) {
  if (request->start()) return group_.recorder().finish(request->operation().entry, BP_OK);
  in_flight_.add(request);
  try {
    watchdog_->expect(request->watchdog_deadline());  // not before: an operation that is done needs no thread
  } catch (const Error&) {
    cancel_and_wait({request});
    throw;
  }
}

void Operations::perform_task(const Operation& operation) {
  const auto use = UseGuard::of_active(group_.state());
  perform(operation);
}

void Operations::finish(Request& request, int32_t status) {
  group_.recorder().finish(request.operation().entry, status);
  in_flight_.remove(&request);
}

void Operations::close() {
  executor_.stop();
  in_flight_.await_all();
  watchdog_->stop();
}

}  // namespace backplane::core
