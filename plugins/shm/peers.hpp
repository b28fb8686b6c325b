// SPDX-License-Identifier: Apache-2.0
//
// Who of the group is there: each rank's own word, and what the kernel says about processes that gave none.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "backplane/sdk/failure.hpp"
#include "futex.hpp"
#include "layout.hpp"

namespace backplane::shm {

// "rank 3", for messages.
std::string named(int32_t rank);

class Peers {
 public:
  // The view must outlive this object.
  Peers(const View& view, int32_t rank, int32_t world_size) : view_(view), rank_(rank), world_size_(world_size) {}

  // Takes this rank's place. False: another process has it.
  bool enter();
  // Tells the others that this rank has left, or why it gave up. Only the first of these calls counts.
  void leave() noexcept;
  void abort(const sdk::Failure& why) noexcept;

  bool is_present(int32_t rank) const { return static_cast<State>(view_.member(rank).state.load()) == State::kPresent; }
  bool has_come(int32_t rank) const { return static_cast<State>(view_.member(rank).state.load()) != State::kAbsent; }
  // What operations with a rank that is not present end with.
  sdk::Failure failure(int32_t rank) const;

  // Changes when a rank goes.
  uint32_t departures() const { return view_.header().departures.load(); }
  // Looks, at most every 50 ms, whether the processes of the next few others still run, and marks those that do not,
  // for all ranks to see: each begins after its own rank, and goes on where it ended. Any thread.
  void look_for_dead() noexcept;

  // Publishing something for ranks that may be about to sleep needs a full fence between it and the look for sleepers.
  // That fence would wait until the other processor gives up the line just written, so if the kernel offers
  // membarrier, it is the sleeper who pays: it has all processors pass a fence before its last look.
  //
  // Learns whether all ranks have registered for that. When all have come.
  void learn_fence();
  bool publishes_lightly() const noexcept { return publishes_lightly_; }
  // Of a sleeper, between counting itself and its last look.
  void fence() const noexcept;

  // Wakes the threads of a rank that sleep; see ring() in futex.hpp.
  void wake(int32_t rank) const noexcept { ring(view_.member(rank).bell); }
  void wake_others() const noexcept;

  // A collective has failed here: what this rank has lent, others must no longer believe. Before the program has its
  // buffers back.
  void break_loan() noexcept;
  // After reading what a rank has lent: might that have been something else by then?
  bool has_broken_loan(int32_t rank) const noexcept;

  // Did another rank wait on the processor that this thread runs on? Then that rank cannot do what this one waits for
  // before it gives up the processor.
  bool shares_processor() noexcept;

  // Those that the ranks may run on, all together, as far as their affinities tell.
  int processors() const;
  bool oversubscribed() const { return processors() < world_size_; }
  // Where each rank runs. When all have come.
  std::vector<Site> sites() const;

 private:
  void depart(int32_t rank, State state) noexcept;

  const View view_;
  const int32_t rank_;
  const int32_t world_size_;
  std::atomic<int64_t> next_look_ = 0;      // nanoseconds on the steady clock
  std::atomic<int32_t> looked_at_ = rank_;  // the rank that was looked at last
  bool publishes_lightly_ = false;
  std::mutex leaving_;
};

}  // namespace backplane::shm
