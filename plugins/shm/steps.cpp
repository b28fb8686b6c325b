// SPDX-License-Identifier: Apache-2.0
#include "steps.hpp"

#include <string>

namespace backplane::shm {
namespace {

// Data under way usually arrive within a few hundred nanoseconds: polls before the clock is read.
constexpr int kSpinPolls = 64;

// Larger slots do not profit.
constexpr uint64_t kClaim = UINT64_C(8) << 10;

}  // namespace

void Steps::prefetch_next(uint64_t size) const {
  if (size <= kLineData || size > kClaim) return;
  const std::byte* const next = own_data(last_ + 1, size);
  for (uint64_t at = 0; at < size; at += 64) prefetch_for_write(next + at);
}

void Steps::throw_mismatch(int32_t rank) {
  throw sdk::Failure(BP_INVALID,
                     "rank " + std::to_string(rank) +
                         " is in another collective, or in one with other counts, dtype, root or reduce operation",
                     rank);
}

void Steps::barrier(const StepContext& context) {
  const uint32_t step = begin(context);
  publish(step, context);
  for (int32_t rank = 0; rank < world_size_; ++rank) wait_for(rank, step, 0, context);
}

void Steps::check(const StepContext& context) const {
  waiter_.check();
  if (context.deadline.passed()) throw sdk::Failure(BP_TIMEOUT, "the collective timed out");
}

// Remembers the minimum, which usually suffices for several steps.
void Steps::await_all(uint32_t step, const StepContext& context) {
  uint32_t least = last_;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    uint32_t& seen = seen_[static_cast<size_t>(rank)];
    if (!reached(seen, step)) {
      wait_for_step(rank, step, context);
      seen = step;
    }
    if (!reached(seen, least)) least = seen;
  }
  all_seen_ = least;
}

void Steps::wait_for_step(int32_t rank, uint32_t step, const StepContext& context) {
  const std::atomic<uint32_t>& published = line(rank, step).step;
  const auto is_shown = [&published, step] { return reached(published.load(), step); };
  for (int i = 0; i < kSpinPolls && waiter_.spins(); ++i) {
    if (is_shown()) return;
  }
  bool is_gone = false;
  uint32_t polls = 0;
  const auto ready = [this, rank, &is_shown, &is_gone, &polls](Poll mode) {
    if (is_shown()) return true;
    if (mode == Poll::kQuick && ++polls % 64 != 0) return false;
    messages_.poll(mode);
    is_gone = !peers_.is_present(rank);
    return is_gone;
  };
  const WaitResult end = waiter_.until(context.deadline, ready);
  if (is_shown()) return;
  if (is_gone) throw sdk::Failure(peers_.failure(rank));
  waiter_.check();
  if (end == WaitResult::kInterrupted) throw sdk::Interruption::failure();
  if (end != WaitResult::kTimeout) throw sdk::Failure(BP_INTERNAL, "a rank skipped a step of a collective", rank);
  throw sdk::Failure(BP_TIMEOUT, "rank " + std::to_string(rank) + " did not enter the collective before it timed out",
                     rank);
}

}  // namespace backplane::shm
