// SPDX-License-Identifier: Apache-2.0
#include "group/native_request.hpp"

#include <algorithm>

#include "group/group.hpp"
#include "group/watchdog.hpp"

namespace backplane::core {

NativeRequest::NativeRequest(std::shared_ptr<Group> group, Operation operation, std::function<void()> unpack)
    : Request(std::move(group), std::move(operation), std::move(unpack)) {
  if (operation_.op.kind == BP_RECV) callers_result_ = std::exchange(operation_.op.result, &received_);
}

bool NativeRequest::start() {
  const Agent& agent = *operation_.agent;
  bp_error err;
  bp_error_init(&err);
  const int32_t status = agent.api().submit(agent.self(), &operation_.op, &work_, &err);
  if (status != BP_OK) throw_report(status, err, "");
  if (work_ != nullptr) return false;
  has_ended_ = true;
  copy_result();
  unpack(false);
  settle(std::nullopt);
  return true;
}

void NativeRequest::copy_result() const {
  if (callers_result_ == nullptr) return;
  callers_result_->source = received_.source;
  callers_result_->bytes = received_.bytes;
  if (BP_HAS(callers_result_, tag)) callers_result_->tag = received_.tag;
}

bp_result NativeRequest::result() { return operation_.op.kind == BP_RECV && settled() ? received_ : Request::result(); }

bool NativeRequest::start_driving(Deadline deadline) {
  std::unique_lock lock(driver_mutex_);
  const auto left = [this] { return !driven_; };
  if (deadline.infinite()) {
    driver_left_.wait(lock, left);
  } else if (!driver_left_.wait_until(lock, deadline.at(), left)) {
    return false;
  }
  driven_ = true;
  return true;
}

void NativeRequest::stop_driving() {
  {
    const std::lock_guard lock(driver_mutex_);
    driven_ = false;
  }
  driver_left_.notify_all();
}

void NativeRequest::advance(Deadline deadline) {
  if (!start_driving(deadline)) return;  // the other thread settles the request
  if (!settled()) drive(deadline);
  stop_driving();
}

// May run while another thread drives the backend, but not while that thread releases the work.
void NativeRequest::wait_on_stream(void* stream) {
  bool is_waiting = false;
  if (begin_stream_wait()) {
    is_waiting = wait_on_stream_natively(stream);
    end_stream_wait();
  }
  if (!is_waiting) wait(Deadline::never());
}

bool NativeRequest::begin_stream_wait() {
  const std::lock_guard lock(driver_mutex_);
  if (has_ended_ || operation_.agent->device() == nullptr) return false;
  ++stream_waits_;
  return true;
}

void NativeRequest::end_stream_wait() {
  {
    const std::lock_guard lock(driver_mutex_);
    --stream_waits_;
  }
  driver_left_.notify_all();
}

// Waits no longer than wait_on_stream takes for a terminal work.
void NativeRequest::await_stream_waits() {
  std::unique_lock lock(driver_mutex_);
  has_ended_ = true;
  driver_left_.wait(lock, [this] { return stream_waits_ == 0; });
}

bool NativeRequest::wait_on_stream_natively(void* stream) {
  const bp_device_api* const device = operation_.agent->device();
  bp_error err;
  bp_error_init(&err);
  return device->wait_on_stream(device->ctx, work_, stream, deadline_.left_ns(), &err) == BP_OK;
}

void NativeRequest::drive(Deadline deadline) {
  bp_error err;
  bp_error_init(&err);
  const Agent& agent = *operation_.agent;
  int32_t status = agent.api().work_wait(agent.self(), work_, std::min(deadline, deadline_).left_ns(), &err);
  if (status == BP_AGAIN && deadline_.passed()) {
    status = group_->operations().finish_work(operation_, work_, deadline_, &err);
  }
  if (status != BP_AGAIN) end(status, err);
}

void NativeRequest::end(int32_t status, const bp_error& err) {
  await_stream_waits();
  {
    const std::lock_guard lock(work_mutex_);
    operation_.agent->api().work_release(operation_.agent->self(), work_);
    work_ = nullptr;
  }
  std::optional<Error> error;
  if (status != BP_OK) {
    const Error cause(status, err.text, err.peer_rank, err.native_code);
    error = group_->failures().handle(cause, operation_, true);
  }
  copy_result();
  unpack(error.has_value());
  settle(std::move(error));
  group_->operations().finish(*this, status);
}

void NativeRequest::cancel() {
  if (collective(operation_.op.kind)) {
    if (!settled()) group_->state().abort(Error(BP_CANCELLED, "a collective was cancelled by this rank"));
    return;
  }
  const std::lock_guard lock(work_mutex_);
  if (work_ != nullptr) operation_.agent->api().work_cancel(operation_.agent->self(), work_);
}

namespace {

// The callback given to a backend, which calls it once.
struct Notice {
  std::function<void()> call;
  static void ended(void* notice) {
    const std::unique_ptr<Notice> self(static_cast<Notice*>(notice));
    self->call();
  }
};

}  // namespace

void NativeRequest::request_notice() {
  if (!backend_notifies()) group_->operations().watchdog()->poll(weak_from_this());
}

// True: the backend reports the end, or the operation has ended.
bool NativeRequest::backend_notifies() {
  const bp_notify_api* const api = operation_.agent->notify();
  if (api == nullptr) return false;
  const std::shared_ptr<Watchdog> watchdog = group_->operations().watchdog();
  watchdog->ensure_thread();
  auto notice = std::make_unique<Notice>();
  notice->call = [watchdog, request = weak_from_this()] { watchdog->notify_ended(request); };
  const std::lock_guard lock(work_mutex_);
  if (work_ == nullptr) return true;
  bp_error err;
  bp_error_init(&err);
  if (api->on_end(api->ctx, work_, Notice::ended, notice.get(), &err) != BP_OK) return false;
  static_cast<void>(notice.release());  // it deletes itself
  return true;
}

}  // namespace backplane::core
