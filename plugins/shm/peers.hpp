// SPDX-License-Identifier: Apache-2.0
//
// Membership of the group: the state that each rank publishes, and liveness checks of processes that cannot.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "backplane/sdk/failure.hpp"
#include "futex.hpp"
#include "layout.hpp"

namespace backplane::shm {

// "rank 3", for error texts.
std::string named(int32_t rank);

class Peers {
 public:
  // `view` must outlive this object.
  Peers(const View& view, int32_t rank, int32_t world_size) : view_(view), rank_(rank), world_size_(world_size) {}

  // Registers this rank. Returns false if another process already has.
  bool join();
  // Publish that this rank has left, or why it aborted. Only the first call has an effect.
  void leave() noexcept;
  void abort(const sdk::Failure& why) noexcept;

  bool is_present(int32_t rank) const { return static_cast<State>(view_.member(rank).state.load()) == State::kPresent; }
  bool has_joined(int32_t rank) const { return static_cast<State>(view_.member(rank).state.load()) != State::kAbsent; }
  // The failure of operations with a rank that is not present.
  sdk::Failure failure(int32_t rank) const;

  // Changes when a rank leaves, aborts or dies.
  uint32_t departures() const { return view_.header().departures.load(); }
  // At most every 50 ms, checks whether the processes of the next few ranks are alive and marks the dead for all ranks.
  // Each rank starts after itself and continues where it stopped. Any thread.
  void check_liveness() noexcept;

  // A rank that publishes to sleeping ranks needs a full fence before it checks for sleepers. The fence waits until the
  // other processor releases the line just written. With membarrier the sleeper executes the fence on all processors
  // instead, before its last check.
  //
  // Finds out whether all ranks are registered for membarrier. Call when all have joined.
  void agree_on_membarrier();
  bool uses_membarrier() const noexcept { return uses_membarrier_; }
  // For a sleeper, between registering and its last check.
  void fence() const noexcept;

  // Wakes the sleeping threads of a rank; see ring() in futex.hpp.
  void wake(int32_t rank) const noexcept { ring(view_.member(rank).doorbell); }
  void wake_others() const noexcept;

  // Invalidates the exposed buffers of this rank after a failed collective. Call before the program gets its buffers
  // back.
  void mark_collective_failed() noexcept;
  // Call after reading exposed buffers of a rank: whether they may have been invalid.
  bool has_failed_collective(int32_t rank) const noexcept;

  // Whether another rank last waited on the processor of this thread. That rank cannot run until this thread gives up
  // the processor.
  bool shares_processor() noexcept;

  // The number of processors in the union of all affinities.
  int processors() const;
  bool oversubscribed() const { return processors() < world_size_; }
  // Whether the options of all ranks permit reading processes. Call when all have joined.
  bool all_may_read() const;
  // Locality of each rank. Call when all have joined.
  std::vector<Locality> localities() const;

 private:
  void leave_as(int32_t rank, State state) noexcept;

  const View view_;
  const int32_t rank_;
  const int32_t world_size_;
  std::atomic<int64_t> next_check_ = 0;        // nanoseconds on the steady clock
  std::atomic<int32_t> last_checked_ = rank_;  // the rank that was looked at last
  bool uses_membarrier_ = false;
  std::mutex leaving_;
};

}  // namespace backplane::shm
