// SPDX-License-Identifier: Apache-2.0
//
// The steps of collectives. In each step a rank may publish up to kSlotSize bytes and read what the others publish.
// Steps are numbered over the life of the group, equally on all ranks, because all submit the same collectives in the
// same order.
//
// A rank publishes step k by writing its line k % kSteps or its slot k % Staging::slots, then the step's number into
// the line. It does so in every step, with or without data: publishing step k means that it has read everything up to
// step k - kLag, so those lines can be reused, and slots, which return later.
#pragma once

#include <vector>

#include "backplane/sdk/sockets.hpp"
#include "messages.hpp"
#include "peers.hpp"
#include "progress.hpp"

namespace backplane::shm {

// Deadline and digest of a collective.
struct StepContext {
  LazyDeadline& deadline;
  uint32_t digest;  // of the parameters on which all ranks must agree
};

class Steps {
 public:
  static constexpr uint32_t kLag = 4;  // a rank reads step k before it publishes step k + kLag

  Steps(const View& view, int32_t rank, int32_t world_size, Peers& peers, Waiter& waiter, Messages& messages)
      : lines_(&view.line(0, 0)),
        slots_(view.slot(0, 0)),
        slots_per_rank_(view.layout().staging().slots),
        rank_(rank),
        world_size_(world_size),
        peers_(peers),
        waiter_(waiter),
        messages_(messages),
        seen_(static_cast<size_t>(world_size)) {
    for (int32_t other = 0; other < world_size; ++other) {
      if (other != rank) doorbells_.push_back(&view.member(other).doorbell);
    }
  }

  // Begins the next step. Waits until its line and slot can be reused.
  uint32_t begin(const StepContext& context) {
    const uint32_t step = ++last_;
    const uint32_t needed = step - kSteps + kLag;  // a rank that has published it has read step - kSteps
    if (!reached(all_seen_, needed)) await_all(needed, context);
    return step;
  }
  // The memory for this rank's data of up to `size` bytes. `size` must be equal on all ranks.
  std::byte* own_data(uint32_t step, uint64_t size) const { return data_of(rank_, step, size); }
  void publish(uint32_t step, const StepContext& context) {
    Line& own = line(rank_, step);
    own.digest = context.digest;
    shm::publish(own.step, step, peers_.uses_membarrier());
    for (Doorbell* const doorbell : doorbells_) ring(*doorbell);
    prefetch_for_write(&line(rank_, step + 1));
  }
  // Call at the end of a collective in which this rank has filled `size` bytes of a slot. Fetches the next step's
  // memory from the caches of its previous readers, in parallel with other work, since most collectives resemble the
  // previous one.
  void prefetch_next(uint64_t size) const;
  // Waits for and returns the data of a rank. Throws BP_INVALID if that rank is in another collective, BP_PEER_LOST,
  // BP_TIMEOUT, or the cause of an abort.
  const std::byte* wait_for(int32_t rank, uint32_t step, uint64_t size, const StepContext& context) {
    if (rank != rank_) {
      const Line& theirs = line(rank, step);
      if (!reached(theirs.step.load(), step)) wait_for_step(rank, step, context);
      seen_[static_cast<size_t>(rank)] = step;
      if (theirs.digest != context.digest) throw_mismatch(rank);
    }
    return data_of(rank, step, size);
  }
  // Whether wait_for would return at once.
  bool has_published(int32_t rank, uint32_t step) const { return reached(line(rank, step).step.load(), step); }
  Peers& peers() const { return peers_; }
  // Returns once all ranks have entered.
  void barrier(const StepContext& context);
  // Throws the cause of an abort, or BP_TIMEOUT. For long work between steps. Reads the clock.
  void check(const StepContext& context) const;

 private:
  std::byte* data_of(int32_t rank, uint32_t step, uint64_t size) const {
    return size <= kLineData
               ? line(rank, step).data.data()
               : slots_ + (static_cast<size_t>(rank) * slots_per_rank_ + (step & (slots_per_rank_ - 1))) * kSlotSize;
  }
  Line& line(int32_t rank, uint32_t step) const { return lines_[index_of(rank, step)]; }
  static size_t index_of(int32_t rank, uint32_t step) { return static_cast<size_t>(rank) * kSteps + step % kSteps; }
  static bool reached(uint32_t number, uint32_t step) { return static_cast<int32_t>(number - step) >= 0; }
  // Requests exclusive ownership of a cache line in the background. No effect on processors without the instruction,
  // which the compiler offers only for newer targets.
  static void prefetch_for_write(const void* line) noexcept {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
    __builtin_prefetch(line, 1);
#endif
  }
  // Return once the step has been published.
  void wait_for_step(int32_t rank, uint32_t step, const StepContext& context);
  void await_all(uint32_t step, const StepContext& context);
  [[noreturn]] static void throw_mismatch(int32_t rank);

  Line* const lines_;  // cached from View
  std::byte* const slots_;
  const uint32_t slots_per_rank_;  // a power of two
  const int32_t rank_;
  const int32_t world_size_;
  Peers& peers_;
  Waiter& waiter_;
  Messages& messages_;
  uint32_t last_ = 0;                 // the last step begun
  uint32_t all_seen_ = 0;             // a step that all others have published
  std::vector<uint32_t> seen_;        // by rank: a step that it has published
  std::vector<Doorbell*> doorbells_;  // of the others
};

}  // namespace backplane::shm
