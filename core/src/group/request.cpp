// SPDX-License-Identifier: Apache-2.0
#include "group/request.hpp"

#include <algorithm>
#include <cstring>

#include "group/group.hpp"
#include "group/pass.hpp"
#include "group/watchdog.hpp"
#include "interrupt.hpp"
#include "waiting.hpp"

namespace backplane::core {
namespace {

void copy_array(const uint64_t*& array, int32_t world_size, std::vector<uint64_t>& storage) {
  if (array == nullptr || array == storage.data()) return;
  storage.assign(array, array + world_size);
  array = storage.data();
}

// A call that was left behind in the backend may still use the memory of a list, which then stays for ever.
void keep_from_wedged(const Started& started) {
  if (started.deliver && started.agent->wedged()) new std::function<void()>(started.deliver);
}

}  // namespace

bool Request::settled() {
  const std::lock_guard lock(state_mutex_);
  return settled_;
}

void Request::settle(std::optional<Error> error) {
  std::vector<std::pair<uint64_t, Ended>> callbacks;
  {
    const std::lock_guard lock(state_mutex_);
    if (settled_) return;
    settled_ = true;
    error_ = std::move(error);
    callbacks.swap(callbacks_);
  }
  for (const auto& [number, ended] : callbacks) ended(error_ ? &*error_ : nullptr);
}

uint64_t Request::on_end(Ended ended) {
  bool is_first = false;
  uint64_t number = 0;
  {
    std::unique_lock lock(state_mutex_);
    if (settled_) {
      lock.unlock();
      ended(error_ ? &*error_ : nullptr);
      return 0;
    }
    number = ++last_callback_;
    callbacks_.emplace_back(number, std::move(ended));
    is_first = !std::exchange(watched_, true);
  }
  if (!is_first) return number;
  try {
    watch();
  } catch (...) {  // no thread, no memory: the caller is told, so that the callback must not come
    const std::lock_guard lock(state_mutex_);
    watched_ = false;
    if (std::erase_if(callbacks_, [number](const auto& each) { return each.first == number; }) > 0) throw;
  }
  return number;
}

void Request::forget_callback(uint64_t number) {
  const std::lock_guard lock(state_mutex_);
  std::erase_if(callbacks_, [number](const auto& each) { return each.first == number; });
}

bool Request::answer() {
  const std::lock_guard lock(state_mutex_);
  if (settled_ && error_) throw Error(*error_);
  return settled_;
}

bool Request::test() { return wait(Deadline::after(0)); }

bool Request::wait(Deadline deadline) {
  while (!settled()) {
    advance(Interruptible::next_look(deadline));
    if (settled() || deadline.passed() || !Interruptible::active()) break;
    if (!Interruptible::interrupted()) continue;
    cancel();
    advance(Deadline::never());
  }
  return answer();
}

size_t wait_any(const std::vector<std::shared_ptr<Request>>& requests, Deadline deadline) {
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_set = false;
  };
  const auto first = [&requests] {
    size_t i = 0;
    while (i < requests.size() && !requests[i]->settled()) ++i;
    return i;
  };
  const auto look = [](Request& request, Deadline until) {
    try {
      request.wait(until);
    } catch (const Error&) {  // told by the caller
    }
  };
  for (const auto& request : requests) look(*request, Deadline::after(0));
  if (first() < requests.size() || deadline.passed()) return first();
  const auto signal = std::make_shared<Signal>();
  std::vector<uint64_t> numbers;
  for (const auto& request : requests) {
    numbers.push_back(request->on_end([signal](const Error*) {
      const std::lock_guard lock(signal->mutex);
      signal->is_set = true;
      signal->changed.notify_all();
    }));
  }
  const auto leave = [&] {
    for (size_t i = 0; i < numbers.size(); ++i) requests[i]->forget_callback(numbers[i]);
  };
  try {
    std::unique_lock lock(signal->mutex);
    wait_on(signal->changed, lock, deadline, [&signal] { return signal->is_set; });
  } catch (const Error&) {  // interrupted
    leave();
    for (const auto& request : requests) request->cancel();
    for (const auto& request : requests) look(*request, Deadline::never());
    throw;
  }
  leave();
  return first();
}

NativeRequest::NativeRequest(Started started, bp_work* work) : started_(std::move(started)), work_(work) {
  if (work_ != nullptr) return;
  is_over_ = true;
  hand_out_result();
  if (started_.deliver) started_.deliver();
  settle(std::nullopt);
}

void NativeRequest::hand_out_result() const {
  if (!started_.result || started_.callers_result == nullptr) return;
  started_.callers_result->source = started_.result->source;
  started_.callers_result->bytes = started_.result->bytes;
  if (BP_HAS(started_.callers_result, tag)) started_.callers_result->tag = started_.result->tag;
}

bp_result NativeRequest::result() { return started_.result && settled() ? *started_.result : Request::result(); }

bool NativeRequest::take_over(Deadline deadline) {
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

void NativeRequest::leave() {
  {
    const std::lock_guard lock(driver_mutex_);
    driven_ = false;
  }
  driver_left_.notify_all();
}

void NativeRequest::advance(Deadline deadline) {
  if (!take_over(deadline)) return;  // the other thread will settle it
  if (!settled()) drive(deadline);
  leave();
}

// Beside a thread that drives the backend, but not beside its release of the work.
void NativeRequest::wait_on_stream(void* stream) {
  bool is_ordered = false;
  if (enter_order()) {
    is_ordered = order_by_backend(stream);
    leave_order();
  }
  if (!is_ordered) wait(Deadline::never());
}

bool NativeRequest::enter_order() {
  const std::lock_guard lock(driver_mutex_);
  if (is_over_ || started_.agent->device() == nullptr) return false;
  ++ordering_;
  return true;
}

void NativeRequest::leave_order() {
  {
    const std::lock_guard lock(driver_mutex_);
    --ordering_;
  }
  driver_left_.notify_all();
}

// No longer than a call of wait_on_stream takes for a work that is terminal.
void NativeRequest::await_orders() {
  std::unique_lock lock(driver_mutex_);
  is_over_ = true;
  driver_left_.wait(lock, [this] { return ordering_ == 0; });
}

bool NativeRequest::order_by_backend(void* stream) {
  const bp_device_api* const device = started_.agent->device();
  bp_error err;
  bp_error_init(&err);
  return device->wait_on_stream(device->ctx, work_, stream, started_.deadline.left_ns(), &err) == BP_OK;
}

void NativeRequest::drive(Deadline deadline) {
  bp_error err;
  bp_error_init(&err);
  const Agent& agent = *started_.agent;
  int32_t status = agent.api().work_wait(agent.self(), work_, std::min(deadline, started_.deadline).left_ns(), &err);
  if (status == BP_AGAIN && started_.deadline.passed()) {
    status = started_.group->finish_work(*started_.agent, work_, started_.deadline, started_.valid, &err);
  }
  if (status != BP_AGAIN) end(status, err);
}

void NativeRequest::end(int32_t status, const bp_error& err) {
  await_orders();
  {
    const std::lock_guard lock(work_mutex_);
    started_.agent->api().work_release(started_.agent->self(), work_);
    work_ = nullptr;
  }
  std::optional<Error> error;
  if (status != BP_OK) {
    const Error cause(status, err.text, err.peer_rank, err.native_code);
    error = started_.group->failure(cause, started_.valid, true);
  }
  hand_out_result();
  if (error) {
    keep_from_wedged(started_);
  } else if (started_.deliver) {
    started_.deliver();
  }
  settle(std::move(error));
  started_.group->forget(this, started_.number, status);
}

void NativeRequest::cancel() {
  if (collective(started_.valid.op.kind)) {
    if (!settled()) started_.group->abort(Error(BP_CANCELLED, "a collective was cancelled by this rank"));
    return;
  }
  const std::lock_guard lock(work_mutex_);
  if (work_ != nullptr) started_.agent->api().work_cancel(started_.agent->self(), work_);
}

const std::string& NativeRequest::group_name() const { return started_.group->config().name; }

namespace {

// What a backend is told to call.
struct Notice {
  std::function<void()> tell;
  static void ended(void* to) {
    const std::unique_ptr<Notice> notice(static_cast<Notice*>(to));
    notice->tell();
  }
};

}  // namespace

void NativeRequest::watch() {
  if (!asks_for_notice()) started_.group->watchdog_->poll(weak_from_this());
}

// True: the backend tells of the end, or it has come.
bool NativeRequest::asks_for_notice() {
  const bp_notify_api* const api = started_.agent->notify();
  if (api == nullptr) return false;
  started_.group->watchdog_->prepare();
  auto notice = std::make_unique<Notice>();
  notice->tell = [watchdog = started_.group->watchdog_, request = weak_from_this()] { watchdog->wake(request); };
  const std::lock_guard lock(work_mutex_);
  if (work_ == nullptr) return true;
  bp_error err;
  bp_error_init(&err);
  if (api->on_end(api->ctx, work_, Notice::ended, notice.get(), &err) != BP_OK) return false;
  static_cast<void>(notice.release());  // it deletes itself
  return true;
}

const std::string& TaskRequest::group_name() const { return started_.group->config().name; }

TaskRequest::TaskRequest(Started started) : started_(std::move(started)) {
  ValidOp& valid = started_.valid;
  const int32_t world_size = started_.group->config().world_size;
  copy_array(valid.op.in_counts, world_size, in_counts_);
  copy_array(valid.op.out_counts, world_size, out_counts_);
  copy_array(valid.op.in_displs, world_size, valid.in_displs);
  copy_array(valid.op.out_displs, world_size, valid.out_displs);
  if (valid.op.scalar != nullptr) {
    std::memcpy(scalar_, valid.op.scalar, bp_dtype_size(valid.op.dtype));
    valid.op.scalar = scalar_;
  }
}

void TaskRequest::perform() {
  Group& group = *started_.group;
  std::optional<Error> error;
  try {
    const Group::Pass pass(group);
    count_queueing();
    group.perform(*started_.agent, started_.valid, started_.native);
    if (started_.deliver) started_.deliver();
  } catch (const Error& e) {
    error = group.failure(e, started_.valid, true);
  } catch (const std::exception& e) {
    error = group.failure(Error(BP_RESOURCE, e.what()), started_.valid, true);
  }
  if (error) keep_from_wedged(started_);
  const int32_t status = error ? error->status() : BP_OK;
  settle(std::move(error));
  {
    const std::lock_guard lock(done_mutex_);
    done_ = true;
  }
  done_changed_.notify_all();
  group.forget(this, started_.number, status);
}

// Time spent in the queue counts.
void TaskRequest::count_queueing() { started_.valid.op.timeout_ns = started_.deadline.left_ns(); }

void TaskRequest::advance(Deadline deadline) {
  std::unique_lock lock(done_mutex_);
  const auto done = [this] { return done_; };
  const Deadline overdue = this->overdue();
  const Deadline first = std::min(deadline, overdue);
  if (first.infinite()) return done_changed_.wait(lock, done);
  if (done_changed_.wait_until(lock, first.at(), done) || !overdue.passed()) return;
  lock.unlock();
  started_.group->abort(
      started_.group->labelled(Error(BP_TIMEOUT, "timed out behind an earlier collective"), started_.valid));
  lock.lock();
  if (deadline.infinite()) return done_changed_.wait(lock, done);
  done_changed_.wait_until(lock, deadline.at(), done);
}

void TaskRequest::cancel() {
  if (!settled()) started_.group->abort(Error(BP_CANCELLED, "a collective was cancelled by this rank"));
}

}  // namespace backplane::core
