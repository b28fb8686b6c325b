// SPDX-License-Identifier: Apache-2.0
#include "group/state.hpp"

#include <thread>

namespace backplane::core {

void GroupState::refuse() const {
  if (config_.rank < 0) fail(BP_INVALID, "this rank is not a member of group '{}'", config_.name);
  if (destroyed()) fail(BP_INVALID, "group '{}' has been destroyed", config_.name);
  const std::lock_guard lock(mutex_);
  if (is_loss_) throw Error(*cause_);
  throw Error(cause_->status(), fmt::format("group '{}' is broken: {}", config_.name, cause_->what()),
              cause_->peer_rank(), cause_->native_code());
}

std::optional<Error> GroupState::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

void GroupState::throw_cause() const {
  if (const auto known = cause()) throw Error(*known);
}

std::optional<Error> GroupState::await_cause(int64_t timeout_ns) const {
  std::unique_lock lock(mutex_);
  broken_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return cause_ || !active(); });
  return cause_;
}

bool GroupState::await_unused(const Deadline& deadline) const {
  constexpr std::chrono::milliseconds kPoll{1};  // an active group does not notify
  while (in_use()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

void GroupState::abort(const Error& cause) {
  const UseGuard use(*this);  // keeps the agents and `job_`
  if (!active()) return;
  const bool is_loss = job_.detector && job_.detector->is_known_loss(cause, config_.global_ranks);
  {
    const std::lock_guard lock(mutex_);
    if (cause_ || !active()) return;
    cause_.emplace(cause);
    is_loss_ = is_loss;
    Phase expected = Phase::kActive;
    if (!phase_.compare_exchange_strong(expected, Phase::kBroken)) return;
  }
  broken_.notify_all();
  on_broken_(cause);
}

}  // namespace backplane::core
