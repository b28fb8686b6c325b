// SPDX-License-Identifier: Apache-2.0
#include "group/request.hpp"

#include <algorithm>

#include "group/group.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {
namespace {

// How long an operation that was asked to end may take before the whole group is aborted.
constexpr int64_t kCancelGrace = INT64_C(100) * 1000000;

void copy_counts(const uint64_t*& counts, int32_t world_size, std::vector<uint64_t>& storage) {
  if (counts == nullptr) return;
  if (counts != storage.data()) storage.assign(counts, counts + world_size);
  counts = storage.data();
}

}  // namespace

bool Request::settled() {
  const std::lock_guard lock(state_mutex_);
  return settled_;
}

void Request::settle(std::optional<Error> error) {
  const std::lock_guard lock(state_mutex_);
  settled_ = true;
  error_ = std::move(error);
}

bool Request::answer() {
  const std::lock_guard lock(state_mutex_);
  if (settled_ && error_) throw Error(*error_);
  return settled_;
}

bool Request::test() {
  if (!settled()) advance(Deadline::after(0));
  return answer();
}

bool Request::wait(Deadline deadline) {
  if (!settled()) advance(deadline);
  return answer();
}

void NativeRequest::advance(Deadline deadline) {
  std::unique_lock driver(driver_mutex_, std::defer_lock);
  if (deadline.passed()) {
    if (!driver.try_lock()) return;  // somebody else waits and will settle it
  } else {
    driver.lock();
  }
  if (settled()) return;
  Group::Pass::Unchecked pass(*started_.group);
  const bp_process_group_api& api = started_.agent->api();
  bp_error err;
  bp_error_init(&err);
  const Deadline until = std::min(deadline, started_.deadline);
  int32_t status = api.work_wait(started_.agent->self(), work_, until.left_ns(), &err);
  if (status == BP_AGAIN && started_.deadline.passed()) status = expire(&err);
  if (status != BP_AGAIN) end(status, err);
}

}  // namespace backplane::core
