// SPDX-License-Identifier: Apache-2.0
#include "group/task_request.hpp"

#include <algorithm>

#include "group/group.hpp"

namespace backplane::core {

TaskRequest::TaskRequest(std::shared_ptr<Group> group, Operation operation, std::function<void()> unpack)
    : Request(std::move(group), std::move(operation), std::move(unpack)),
      owned_(operation_.op, group_->config().world_size) {
  operation_.op = owned_.get();
}

void TaskRequest::perform() {
  std::optional<Error> error;
  try {
    operation_.op.timeout_ns = deadline_.left_ns();  // includes the time in the queue
    group_->operations().perform_task(operation_);
    unpack(false);
  } catch (const Error& e) {
    error = group_->failures().handle(e, operation_, true);
  } catch (const std::exception& e) {
    error = group_->failures().handle(Error(BP_RESOURCE, e.what()), operation_, true);
  }
  if (error) unpack(true);
  const int32_t status = error ? error->status() : BP_OK;
  settle(std::move(error));
  {
    const std::lock_guard lock(done_mutex_);
    done_ = true;
  }
  done_changed_.notify_all();
  group_->operations().finish(*this, status);
}

void TaskRequest::advance(Deadline deadline) {
  std::unique_lock lock(done_mutex_);
  const auto done = [this] { return done_; };
  const Deadline overdue = watchdog_deadline();
  const Deadline first = std::min(deadline, overdue);
  if (first.infinite()) return done_changed_.wait(lock, done);
  if (done_changed_.wait_until(lock, first.at(), done) || !overdue.passed()) return;
  lock.unlock();
  const Error late(BP_TIMEOUT, "timed out behind an earlier collective");
  group_->state().abort(group_->failures().with_context(late, operation_));
  lock.lock();
  if (deadline.infinite()) return done_changed_.wait(lock, done);
  done_changed_.wait_until(lock, deadline.at(), done);
}

void TaskRequest::cancel() {
  if (!settled()) group_->state().abort(Error(BP_CANCELLED, "a collective was cancelled by this rank"));
}

}  // namespace backplane::core
