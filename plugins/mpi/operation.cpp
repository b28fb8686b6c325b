// SPDX-License-Identifier: Apache-2.0
#include "operation.hpp"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

namespace backplane::mpi {
namespace {

constexpr std::chrono::microseconds kShortestPause{50};
constexpr std::chrono::microseconds kLongestPause{1000};
// A pause is this part of the time in which MPI has moved nothing.
constexpr int kPausePart = 16;
// Polls before a thread looks at the clock, about 20 us, and before it tells the progress thread that it polls: most
// receives of small messages end sooner.
constexpr int kPolls = 400;
constexpr int kUntoldPolls = 50;

}  // namespace

sdk::Failure GroupState::with_rank(const sdk::Failure& failure) const {
  if (failure.status() != BP_PEER_LOST || failure.peer_rank() >= 0) return failure;
  try {
    return {BP_PEER_LOST, failure.what(), api().failed_rank(user), failure.native_code()};
  } catch (const std::exception&) {
    return failure;
  }
}

void Operation::share() {
  is_shared_ = true;
  group_.world.progress().add(*this);
}

bool Operation::wait(int64_t timeout_ns) {
  if (poll()) return true;
  if (timeout_ns == 0) return false;
  Progress& progress = group_.world.progress();
  for (int i = 0; i < kUntoldPolls; ++i) {
    if (!poll()) continue;
    progress.report_end();
    return true;
  }
  const Progress::Waiter waiter(progress);
  for (int i = kUntoldPolls; i < kPolls; ++i) {
    if (poll()) return true;
  }
  return wait_long(timeout_ns);
}

// MPI moves a long operation in many steps, most of them while both ranks call it. After a step it is therefore called
// again at once, later between yields. The pauses of a thread that sleeps grow with the time without a step, and are a
// small part of it: where two ranks wait for each other in turn, the delay of one is the wait of the other, and would
// grow with each turn.
bool Operation::wait_long(int64_t timeout_ns) {
  using Clock = base::Deadline::Clock;
  base::SpinPolicy& spin = group_.spin;
  const base::Deadline deadline = base::Deadline::after(timeout_ns);
  const Clock::time_point begin = Clock::now();
  const Clock::time_point busy = begin + group_.poll_time.limit();
  Clock::time_point step = begin;  // the last one
  for (Clock::time_point now = begin; !poll();) {
    const Clock::time_point before = std::exchange(now, Clock::now());
    if (now >= deadline.at()) return false;
    if (group_.poll_time.is_step(now - before)) step = now;
    if (now < busy || step == now) continue;
    if (now - step < spin.limit() && spin.is_worthwhile(now)) {
      now = spin.yield(now);
    } else {
      const auto pause = std::clamp<Clock::duration>((now - step) / kPausePart, kShortestPause, kLongestPause);
      std::this_thread::sleep_until(std::min(deadline.at(), now + pause));
      now = Clock::now();
    }
  }
  group_.poll_time.learn(Clock::now() - begin);
  return true;
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

Progress::Need Operation::advance_unwaited() noexcept {
  try {
    poll_once();
  } catch (const std::exception&) {
    // Without memory: the next pass tries again.
  }
  if (ended_) return Progress::Need::kNone;
  return notice_.ended == nullptr ? Progress::Need::kProgress : Progress::Need::kPromptEnd;
}

bool Operation::poll() {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (is_shared_) lock.lock();
  poll_once();
  if (failure_) throw sdk::Failure(*failure_);
  return ended_;
}

// Operations that are complete stay so, also after a failure of the group. Without memory for a failure, nothing has
// changed, and the next poll finds it again.
void Operation::poll_once() {
  if (ended_) return;
  try {
    if (advance()) {
      settle(ending_ ? std::optional(ending_->why) : std::nullopt);
    } else if (ending_) {
      stop(ending_->why);
    } else if (group_.failure.raised()) {
      stop(group_.failure.cause());
    } else if (cancelled_) {
      stop(sdk::Failure(BP_CANCELLED, "cancelled by this rank"));
    }
  } catch (const sdk::Failure& failure) {
    stop(ending_ ? ending_->why : group_.with_rank(failure));
  }
}

void Operation::stop(const sdk::Failure& why) {
  std::optional failure(why);
  const GivenUp given_up = give_up();
  if (given_up == GivenUp::kCompleted && !ending_) return settle(std::nullopt);
  if (given_up != GivenUp::kNotYet) return settle(std::move(failure));
  if (!ending_) ending_.emplace(Ending{why, base::Deadline::after(group_.direct.count())});
  if (ending_->deadline.passed()) end_process(why.what());
}

void Operation::settle(std::optional<sdk::Failure> failure) {
  failure_ = std::move(failure);
  ended_ = true;
  notice_.give();
}

void Operation::end_now() noexcept {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (is_shared_) {
    group_.world.progress().remove(*this);
    lock.lock();  // waits until the progress thread has left it
  }
  if (ended_) return;
  const base::Deadline deadline = ending_ ? ending_->deadline : base::Deadline::after(group_.direct.count());
  while (give_up() == GivenUp::kNotYet) {
    if (deadline.passed()) end_process(ending_ ? ending_->why.what() : "it has not ended within its timeout");
    try {
      if (advance()) break;
    } catch (const std::exception&) {
      // A request that failed is given up, unless MPI has kept it.
    }
    std::this_thread::sleep_for(kShortestPause);
  }
  ended_ = true;
  notice_.give();
}

void Operation::end_process(const std::string& why) const {
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(group_.direct).count();
  std::fprintf(
      stderr,
      "backplane: mpi: rank %d ends, because MPI still uses memory of the program %lld ms after its %s was given "
      "up (%s); without the option direct MPI works on copies\n",
      group_.rank, static_cast<long long>(limit), sdk::op_name(kind_), why.c_str());
  ::_exit(1);
}

}  // namespace backplane::mpi
