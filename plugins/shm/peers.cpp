// SPDX-License-Identifier: Apache-2.0
#include "peers.hpp"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>

#include "backplane/sdk/peer_failures.hpp"
#include "process.hpp"

namespace backplane::shm {
namespace {

constexpr int64_t kCheckIntervalNs = 50'000'000;
// Ranks per check. All waiting ranks together check every rank in each interval, at a total cost linear in the number
// of ranks. A single waiting rank needs several intervals.
constexpr int kRanksPerCheck = 8;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Text written by another process, made printable.
std::string readable(const std::array<char, kAbortTextSize>& text) {
  std::array<char, kAbortTextSize> copy = text;
  copy.back() = '\0';
  std::string result = copy.data();
  std::replace_if(
      result.begin(), result.end(), [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }, ' ');
  return result;
}

bool register_membarrier() { return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0; }

}  // namespace

std::string named(int32_t rank) { return "rank " + std::to_string(rank); }

bool Peers::join() {
  Member& mine = view_.member(rank_);
  if (static_cast<State>(mine.state.load()) != State::kAbsent) return false;
  mine.pid = ::getpid();
  mine.start_time = start_time_of(mine.pid);
  mine.pid_namespace = pid_namespace();
  mine.cpus = usable_cpus();
  mine.locality = Topology::of_host().locality_of(mine.cpus);
  mine.has_membarrier = register_membarrier() ? 1 : 0;
  uint32_t absent = static_cast<uint32_t>(State::kAbsent);
  return mine.state.compare_exchange_strong(absent, static_cast<uint32_t>(State::kPresent));
}

void Peers::agree_on_membarrier() {
  uses_membarrier_ = true;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (view_.member(rank).has_membarrier != 1) uses_membarrier_ = false;
  }
}

void Peers::fence() const noexcept {
  if (uses_membarrier_) ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

void Peers::leave_as(int32_t rank, State state) noexcept {
  uint32_t present = static_cast<uint32_t>(State::kPresent);
  if (!view_.member(rank).state.compare_exchange_strong(present, static_cast<uint32_t>(state))) return;
  view_.header().departures.fetch_add(1);
  futex_wake_all(view_.header().arrived);
  futex_wake_all(view_.header().go);
  wake_others();
}

void Peers::leave() noexcept {
  const std::lock_guard lock(leaving_);
  leave_as(rank_, State::kLeft);
}

void Peers::abort(const sdk::Failure& why) noexcept {
  const std::lock_guard lock(leaving_);
  if (!is_present(rank_)) return;
  Member& mine = view_.member(rank_);
  mine.abort_status = why.status();
  mine.abort_rank = why.peer_rank();
  std::strncpy(mine.why.data(), why.what(), mine.why.size() - 1);
  leave_as(rank_, State::kAborted);
}

sdk::Failure Peers::failure(int32_t rank) const {
  const Member& member = view_.member(rank);
  switch (static_cast<State>(member.state.load())) {
    case State::kDead:
      return sdk::peer_lost(rank, "its process ended");
    case State::kAborted: {
      const int32_t status = member.abort_status;
      const int32_t failed_rank = member.abort_rank;
      if (status != BP_PEER_LOST || failed_rank < 0 || failed_rank >= world_size_) {
        return sdk::peer_left(rank, readable(member.why));
      }
      return {BP_PEER_LOST, readable(member.why), failed_rank};  // the cause, as on that rank
    }
    default:
      return sdk::peer_left(rank);
  }
}

void Peers::check_liveness() noexcept {
  const int64_t now = now_ns();
  int64_t next = next_check_.load();
  if (now < next || !next_check_.compare_exchange_strong(next, now + kCheckIntervalNs)) return;
  const Member& mine = view_.member(rank_);
  if (mine.pid_namespace == 0) return;
  int32_t rank = last_checked_.load();
  for (int32_t i = 0, left = kRanksPerCheck; i < world_size_ && left > 0; ++i) {
    rank = (rank + 1) % world_size_;
    const Member& member = view_.member(rank);
    if (!is_present(rank) || member.pid == mine.pid || member.pid_namespace != mine.pid_namespace) continue;
    if (!is_alive(member.pid, member.start_time)) leave_as(rank, State::kDead);
    --left;
  }
  last_checked_.store(rank);
}

void Peers::wake_others() const noexcept {
  for (int32_t rank = 0; rank < world_size_; ++rank) wake(rank);
}

void Peers::mark_collective_failed() noexcept {
  view_.member(rank_).collective_failed.store(1);
  full_fence();
}

bool Peers::has_failed_collective(int32_t rank) const noexcept {
  full_fence();
  return view_.member(rank).collective_failed.load() != 0;
}

bool Peers::shares_processor() noexcept {
  const auto mine = static_cast<uint32_t>(::sched_getcpu() + 1);
  std::atomic<uint32_t>& published = view_.member(rank_).cpu;
  if (published.load(std::memory_order_relaxed) != mine) published.store(mine, std::memory_order_relaxed);
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_ || view_.member(rank).cpu.load(std::memory_order_relaxed) != mine) continue;
    if (mine != 0 && is_present(rank)) return true;
  }
  return false;
}

int Peers::processors() const {
  Processors all{};
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    for (size_t i = 0; i < all.size(); ++i) all[i] |= view_.member(rank).cpus[i];
  }
  int count = 0;
  for (const uint64_t mask : all) count += std::popcount(mask);
  return count;
}

bool Peers::all_may_read() const {
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (view_.member(rank).may_read != 1) return false;
  }
  return true;
}

std::vector<Locality> Peers::localities() const {
  std::vector<Locality> all;
  for (int32_t rank = 0; rank < world_size_; ++rank) all.push_back(view_.member(rank).locality);
  return all;
}

}  // namespace backplane::shm
