// SPDX-License-Identifier: Apache-2.0
#include "group/request.hpp"

#include <algorithm>
#include <condition_variable>

#include "group/group.hpp"
#include "interrupt.hpp"
#include "waiting.hpp"

namespace backplane::core {

Request::Request(std::shared_ptr<Group> group, Operation operation, std::function<void()> unpack)
    : group_(std::move(group)),
      operation_(std::move(operation)),
      deadline_(Deadline::after(operation_.op.timeout_ns)),
      unpack_(std::move(unpack)) {}

const std::string& Request::group_name() const { return group_->config().name; }

void Request::unpack(bool failed) const {
  if (!unpack_) return;
  if (!failed) return unpack_();
  if (operation_.agent->hung()) new std::function<void()>(unpack_);  // never freed
}

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
    is_first = !std::exchange(notice_requested_, true);
  }
  if (!is_first) return number;
  try {
    request_notice();
  } catch (...) {  // out of threads or memory: the callback must not be called after the exception
    const std::lock_guard lock(state_mutex_);
    notice_requested_ = false;
    if (std::erase_if(callbacks_, [number](const auto& each) { return each.first == number; }) > 0) throw;
  }
  return number;
}

void Request::remove_callback(uint64_t number) {
  const std::lock_guard lock(state_mutex_);
  std::erase_if(callbacks_, [number](const auto& each) { return each.first == number; });
}

bool Request::outcome() {
  const std::lock_guard lock(state_mutex_);
  if (settled_ && error_) throw Error(*error_);
  return settled_;
}

bool Request::test() { return wait(Deadline::after(0)); }

bool Request::wait(Deadline deadline) {
  while (!settled()) {
    advance(Interruptible::next_check(deadline));
    if (settled() || deadline.passed() || !Interruptible::active()) break;
    if (!Interruptible::interrupted()) continue;
    cancel();
    advance(Deadline::never());
  }
  return outcome();
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
  const auto wait_ignoring_errors = [](Request& request, Deadline until) {
    try {
      request.wait(until);
    } catch (const Error&) {  // the request keeps it
    }
  };
  for (const auto& request : requests) wait_ignoring_errors(*request, Deadline::after(0));
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
  const auto remove_callbacks = [&] {
    for (size_t i = 0; i < numbers.size(); ++i) requests[i]->remove_callback(numbers[i]);
  };
  try {
    std::unique_lock lock(signal->mutex);
    wait_on(signal->changed, lock, deadline, [&signal] { return signal->is_set; });
  } catch (const Error&) {  // interrupted
    remove_callbacks();
    for (const auto& request : requests) request->cancel();
    for (const auto& request : requests) wait_ignoring_errors(*request, Deadline::never());
    throw;
  }
  remove_callbacks();
  return first();
}

}  // namespace backplane::core
