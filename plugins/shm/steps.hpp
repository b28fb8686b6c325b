// SPDX-License-Identifier: Apache-2.0
//
// The steps in which collectives pass. In each, a rank may show the others up to kSlotSize bytes of its own, and read
// what they show. Steps count up over the life of the group, the same on all ranks, because all submit the same
// collectives in the same order.
//
// A rank shows something in step k by writing its line or slot k % kSteps and then the step's number into the line. It
// does so in every step, whether it has something to show or not: that it shows step k says that it has read all it
// wants of the steps up to k - kLag, and their places may be used again.
#pragma once

#include <vector>

#include "backplane/sdk/sockets.hpp"
#include "messages.hpp"
#include "peers.hpp"
#include "waiting.hpp"

namespace backplane::shm {

// What goes for one collective.
struct Passage {
  Limit& limit;
  uint32_t what;  // a digest of what all ranks must agree about
};

class Steps {
 public:
  static constexpr uint32_t kLag = 4;  // a rank reads a step at latest before it shows the one kLag later

  Steps(const View& view, int32_t rank, int32_t world_size, Peers& peers, Waiting& waiting, Messages& messages)
      : lines_(&view.line(0, 0)),
        slots_(view.slot(0, 0)),
        rank_(rank),
        world_size_(world_size),
        peers_(peers),
        waiting_(waiting),
        messages_(messages),
        seen_(static_cast<size_t>(world_size)) {
    for (int32_t other = 0; other < world_size; ++other) {
      if (other != rank) bells_.push_back(&view.member(other).bell);
    }
  }

  // Begins the next step; waits until its place may be used.
  uint32_t begin(const Passage& passage) {
    const uint32_t step = ++last_;
    const uint32_t needed = step - kSteps + kLag;  // who shows it has read step - kSteps
    if (!reached(all_seen_, needed)) await_all(needed, passage);
    return step;
  }
  // Where this rank puts what it shows, if that is up to `size` bytes; all ranks must name the same size.
  std::byte* mine(uint32_t step, uint64_t size) const { return place(rank_, step, size); }
  void show(uint32_t step, const Passage& passage) {
    Line& own = line(rank_, step);
    own.what = passage.what;
    publish(own.step, step, peers_.publishes_lightly());
    for (Bell* const bell : bells_) ring(*bell);
    claim(&line(rank_, step + 1));
  }
  // At the end of a collective in which this rank has filled `size` bytes of a slot: most are like the one before, so
  // that the next step's place is taken from the caches of those who have read it long ago, beside what follows.
  void claim_next(uint64_t size) const;
  // What another rank, or this one, shows. Waits for it. Throws BP_INVALID if that rank is in another collective,
  // BP_PEER_LOST, BP_TIMEOUT, or the cause of an abort.
  const std::byte* see(int32_t rank, uint32_t step, uint64_t size, const Passage& passage) {
    if (rank != rank_) {
      const Line& theirs = line(rank, step);
      if (!reached(theirs.step.load(), step)) await(rank, step, passage);
      seen_[static_cast<size_t>(rank)] = step;
      if (theirs.what != passage.what) refuse(rank);
    }
    return place(rank, step, size);
  }
  // Would `see` return at once?
  bool has_shown(int32_t rank, uint32_t step) const { return reached(line(rank, step).step.load(), step); }
  Peers& peers() const { return peers_; }
  // Throws the cause of an abort, or BP_TIMEOUT: for work between steps that takes long. Looks at the clock.
  void check(const Passage& passage) const;

 private:
  std::byte* place(int32_t rank, uint32_t step, uint64_t size) const {
    return size <= kLineData ? line(rank, step).data.data() : slots_ + place_number(rank, step) * kSlotSize;
  }
  Line& line(int32_t rank, uint32_t step) const { return lines_[place_number(rank, step)]; }
  static size_t place_number(int32_t rank, uint32_t step) { return static_cast<size_t>(rank) * kSteps + step % kSteps; }
  static bool reached(uint32_t number, uint32_t step) { return static_cast<int32_t>(number - step) >= 0; }
  // Has the processor take a line for writing from whoever has read it, beside what else it does; nothing on processors
  // that cannot. The compiler has this instruction only for newer ones than this is built for.
  static void claim(const void* line) noexcept {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
    __builtin_prefetch(line, 1);
#endif
  }
  // Return when it has been shown.
  void await(int32_t rank, uint32_t step, const Passage& passage);
  void await_all(uint32_t step, const Passage& passage);
  [[noreturn]] static void refuse(int32_t rank);

  Line* const lines_;  // as View::line and View::slot have them
  std::byte* const slots_;
  const int32_t rank_;
  const int32_t world_size_;
  Peers& peers_;
  Waiting& waiting_;
  Messages& messages_;
  uint32_t last_ = 0;           // the step that was begun last
  uint32_t all_seen_ = 0;       // a step that all others have shown
  std::vector<uint32_t> seen_;  // by rank, of the others: a step that it has shown
  std::vector<Bell*> bells_;    // of the others
};

}  // namespace backplane::shm
