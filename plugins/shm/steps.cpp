// SPDX-License-Identifier: Apache-2.0
#include "steps.hpp"

#include <string>

namespace backplane::shm {
namespace {

// What is under way comes within a few hundred nanoseconds: it is looked for so often before the clock is read.
constexpr int kLooksAtOnce = 64;

// Bytes that a rank claims at most: beyond, nothing is gained.
constexpr uint64_t kClaim = UINT64_C(8) << 10;

}  // namespace

void Steps::claim_next(uint64_t size) const {
  if (size <= kLineData || size > kClaim) return;
  const std::byte* const next = mine(last_ + 1, size);
  for (uint64_t at = 0; at < size; at += 64) claim(next + at);
}

void Steps::refuse(int32_t rank) {
  throw sdk::Failure(BP_INVALID,
                     "rank " + std::to_string(rank) +
                         " is in another collective, or in one with other counts, dtype, root or reduce operation",
                     rank);
}

void Steps::check(const Passage& passage) const {
  waiting_.check();
  if (passage.limit.passed()) throw sdk::Failure(BP_TIMEOUT, "the collective was not done within the time allowed");
}

// What has been seen suffices for some steps more.
void Steps::await_all(uint32_t step, const Passage& passage) {
  uint32_t least = last_;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    uint32_t& seen = seen_[static_cast<size_t>(rank)];
    if (!reached(seen, step)) {
      await(rank, step, passage);
      seen = step;
    }
    if (!reached(seen, least)) least = seen;
  }
  all_seen_ = least;
}

void Steps::await(int32_t rank, uint32_t step, const Passage& passage) {
  const std::atomic<uint32_t>& shown = line(rank, step).step;
  const auto is_shown = [&shown, step] { return reached(shown.load(), step); };
  for (int i = 0; i < kLooksAtOnce && waiting_.polls(); ++i) {
    if (is_shown()) return;
  }
  bool is_gone = false;
  uint32_t looks = 0;
  const auto ready = [this, rank, &is_shown, &is_gone, &looks](Look look) {
    if (is_shown()) return true;
    if (look == Look::kQuick && ++looks % 64 != 0) return false;
    messages_.move_on(look);
    is_gone = !peers_.is_present(rank);
    return is_gone;
  };
  const End end = waiting_.until(passage.limit, ready);
  if (is_shown()) return;
  if (is_gone) throw sdk::Failure(peers_.failure(rank));
  waiting_.check();
  if (end != End::kLate) throw sdk::Failure(BP_INTERNAL, "a step of a collective was passed over", rank);
  throw sdk::Failure(BP_TIMEOUT,
                     "rank " + std::to_string(rank) + " did not come to the collective within the time allowed", rank);
}

}  // namespace backplane::shm
