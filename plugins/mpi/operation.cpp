// SPDX-License-Identifier: Apache-2.0
#include "operation.hpp"

#include "messages.hpp"

namespace backplane::mpi {
namespace {

constexpr std::chrono::microseconds kShortestPause{50};
constexpr std::chrono::microseconds kLongestPause{1000};
// Polls before a thread first yields: most small operations end within them.
constexpr int kPolls = 64;

}  // namespace

sdk::Failure GroupState::with_rank(const sdk::Failure& failure) const {
  if (failure.status() != BP_PEER_LOST || failure.peer_rank() >= 0) return failure;
  try {
    return {BP_PEER_LOST, failure.what(), api().failed_rank(user), failure.native_code()};
  } catch (const std::exception&) {
    return failure;
  }
}

bool Operation::wait(int64_t timeout_ns) {
  if (poll()) return true;
  if (timeout_ns == 0) return false;
  const Progress::Waiter waiter(group_.world.progress());
  for (int i = 0; i < kPolls; ++i) {
    if (poll()) return true;
  }
  const base::Deadline deadline = base::Deadline::after(timeout_ns);
  if (group_.spin.poll(deadline.at(), [this] { return poll(); })) return true;
  for (auto pause = kShortestPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (poll()) return true;
    if (deadline.passed()) return false;
    std::this_thread::sleep_until(std::min(deadline.at(), base::Deadline::Clock::now() + pause));
  }
}

bool Operation::on_end(sdk::Notice notice) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      notice.give();
      return true;
    }
    notice_ = notice;
  }
  group_.world.progress().hurry();
  return true;
}

Progress::Need Operation::advance_unwaited(bool finds_messages) noexcept {
  try {
    poll_once(finds_messages);
  } catch (const std::exception&) {
    // Without memory: the next pass tries again.
  }
  if (ended_) return Progress::Need::kNone;
  return notice_.ended == nullptr ? Progress::Need::kProgress : Progress::Need::kPromptEnd;
}

bool Operation::poll() {
  const std::lock_guard lock(mutex_);
  poll_once(true);
  if (failure_) throw sdk::Failure(*failure_);
  return ended_;
}

// Operations that are complete stay so, also after a failure of the group. Without memory for a failure, nothing has
// changed, and the next poll finds it again.
void Operation::poll_once(bool finds_messages) {
  if (ended_) return;
  try {
    if (finds_messages) group_.receives->progress();
    if (advance()) {
      settle(std::nullopt);
    } else if (group_.failure.raised()) {
      settle(group_.failure.cause());
      give_up();
    } else if (cancelled_) {
      settle(sdk::Failure(BP_CANCELLED, "cancelled by this rank"));
      give_up();
    }
  } catch (const sdk::Failure& failure) {
    settle(group_.with_rank(failure));
    give_up();  // MPI may still use the memory
  }
}

void Operation::settle(std::optional<sdk::Failure> failure) {
  failure_ = std::move(failure);
  ended_ = true;
  notice_.give();
}

void Operation::end_now() noexcept {
  group_.world.progress().remove(*this);
  const std::lock_guard lock(mutex_);  // waits until the progress thread has left it
  if (ended_) return;
  ended_ = true;
  give_up();
  notice_.give();
}

}  // namespace backplane::mpi
