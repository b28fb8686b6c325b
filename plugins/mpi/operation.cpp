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

bool Operation::wait(int64_t timeout_ns) {
  if (poll() || timeout_ns == 0) return ended_;
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

// Operations that are complete stay so, also after a failure of the group.
bool Operation::poll() {
  if (!ended_) {
    try {
      group_.receives->progress();
      if (advance()) {
        settle(std::nullopt);
      } else if (group_.failure.raised()) {
        give_up();
        settle(group_.failure.cause());
      } else if (cancelled_) {
        give_up();
        settle(sdk::Failure(BP_CANCELLED, "cancelled by this rank"));
      }
    } catch (const sdk::Failure& failure) {
      give_up();  // MPI may still use the memory
      settle(failure);
    }
  }
  if (failure_) throw sdk::Failure(*failure_);
  return ended_;
}

void Operation::settle(std::optional<sdk::Failure> failure) {
  failure_ = std::move(failure);
  ended_ = true;
}

void Operation::end_now() noexcept {
  if (ended_) return;
  ended_ = true;
  give_up();
}

}  // namespace backplane::mpi
