// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of one collective lend each other: buffers that lie in a rank's heap, or inputs in its process
// (cross_memory.hpp). The others read an input there instead of from the slots, and if all lend both from heaps, they
// write results there. Each rank says in the line of the
// collective's first step what it lends; what it does not lend it stages. So ranks with and without such buffers
// understand each other, and those without pay nothing.
//
// A lender may end the collective only when all who use its buffers have shown a later step. If it fails there is no
// such step: then it takes the output back, so that nobody who comes late, perhaps stopped for hours, writes into
// memory that the program uses for something else by then.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "cross_memory.hpp"
#include "pools.hpp"
#include "steps.hpp"

namespace backplane::shm {

// Of `size` bytes of memory at `data`: the whole pages, as offsets from there.
struct Pages {
  Pages(const std::byte* data, uint64_t size) {
    const uint64_t address = reinterpret_cast<uintptr_t>(data);
    const uint64_t first = (address + kPage - 1) / kPage * kPage;
    const uint64_t last = (address + size) / kPage * kPage;
    begin = std::min(first - address, size);
    end = std::max(begin, last > address ? last - address : 0);
  }
  uint64_t size() const { return end - begin; }
  uint64_t begin;
  uint64_t end;
};

class Lending {
 public:
  // Less is passed in one step: the one with which a loan ends would cost more than the copy that it spares.
  static constexpr uint64_t kWorthIt = (UINT64_C(4) << 10) + 1;  // bytes

  // `pools` may be null: then nobody lends from heaps; `cross`, too: nor in processes.
  Lending(int32_t rank, int32_t world_size, const Pools* pools, CrossMemory* cross, Steps& steps)
      : rank_(rank), pools_(pools), cross_(cross), steps_(steps), lent_(static_cast<size_t>(world_size)) {}

  // A new collective. What this rank would lend, of so many bytes; null: nothing. Too small buffers are not worth it.
  // With a scalar (of an element of `element` bytes, 16 at most) others multiply what they read of this rank's input by
  // it, lent or shown.
  void offer(const std::byte* input, std::byte* output, uint64_t size, const std::byte* scalar = nullptr,
             uint64_t element = 0);
  // After offer: if the input is not lent from a heap, then in this process.
  void offer_in_process(const std::byte* input, uint64_t size);
  // Did all say in earlier collectives that they can read in all processes? To `knows_all` counts what this rank has
  // heard in any; to `all_know` only what was said where each heard each other one: all ranks get the same answer.
  bool knows_all() const;
  bool all_know() const;
  // This rank says so, if it can, and how long it took. `to_all`: in this collective each hears each other one. After
  // offer.
  void say_who_reads(const Trial::Best& took, bool to_all);
  // This rank, which has something to show, has all who hear it end the collective together with it. After offer.
  void ask_to_meet();
  // Can this rank? After say_who_reads.
  bool reads_processes() const { return at(rank_).reads_processes; }
  // The shortest that either way took one of those whom this rank has heard, or 0 if nobody says.
  Trial::Best shortest_times() const;
  Trial::Best longest_times() const;
  void offer_nothing() {
    if (may_lend_) offer(nullptr, nullptr, 0);
    may_lend_ = false;
  }
  // The collective has failed: others must not believe what they read in this rank's input, and the whole pages of this
  // rank's output are memory of this process alone (and hold zeros), whatever others still write where they were.
  void take_back() noexcept;
  // All that was lent has been read. Throws BP_PEER_LOST if a rank had taken back by then what it lent. Before this
  // rank shows the collective's last step: afterwards others may have given up in the next one.
  void check_loans() const {
    if (may_lend_) check_lenders();
  }
  // Says so in the line of the step, whose data must be in the slots. With `counts` and `displs` of each rank's block,
  // in elements, and if the input is lent, this rank's slot lists where the others find theirs, and how large they are.
  void show(uint32_t step, const uint64_t* counts = nullptr, const uint64_t* displs = nullptr,
            uint64_t element = 0) const;
  // What a rank wants of what another one lends: of each input the `size` bytes from `offset` on, or from where the
  // lender's list says.
  struct Wanted {
    uint64_t size = 0;
    uint64_t offset = 0;
    bool is_listed = false;
    uint64_t alignment = 1;   // of an input; a multiple of this
    bool in_process = false;  // it may be lent there
  };
  // Hears what another rank lends, and waits for it; `step` is where it says so. Once per collective.
  void hear(int32_t rank, uint32_t step, const Wanted& wanted, const Passage& passage);
  void hear_all(uint32_t step, const Wanted& wanted, const Passage& passage);

  // Copies from what it wants of what another one lends there.
  void copy(int32_t rank, std::byte* to, const std::byte* from, uint64_t size) const;

  // What this rank lends, or what it wants of what another one lends (an address there, if that is in its process);
  // null: nothing is lent.
  const std::byte* input(int32_t rank) const { return at(rank).input; }
  std::byte* output(int32_t rank) const { return at(rank).output; }
  // Of a rank that was heard, if the collective has scalars: one element.
  const std::byte* scalar(int32_t rank) const { return at(rank).scalar.data(); }
  bool any_input() const;
  bool any_meets() const;
  bool only_in_processes() const;  // some lend inputs, and nobody from a heap
  bool all_inputs() const;
  bool all() const;

 private:
  void check_lenders() const;
  void check_lender(int32_t rank) const;
  void check_reach(int32_t rank) const;
  const std::byte* find(int32_t rank, uint64_t place, const Wanted& wanted) const;
  uint64_t listed(int32_t rank, uint32_t step, const Wanted& wanted, const Passage& passage) const;

  using Scalar = std::array<std::byte, 16>;
  struct Lent {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    alignas(16) Scalar scalar = {};
    bool in_process = false;  // the input
    bool meets = false;
    Trial::Best took = {};
    // That it can read in all others' processes: said to this rank; said to all. Outlasts the collective.
    bool reads_processes = false;
    bool all_know = false;
  };
  struct Listed {  // a block
    uint64_t place = 0;
    uint64_t size = 0;  // bytes
  };
  static_assert(kMostRanks * sizeof(Listed) <= kSlotSize);
  struct Places {  // in the memory of whoever shows it; see Pools::place_of
    uint64_t input = 0;
    uint64_t output = 0;
    Scalar scalar = {};
    uint64_t reads_processes = 0;
    uint64_t meets = 0;
    Trial::Best took = {};
  };
  const Lent& at(int32_t rank) const { return lent_[static_cast<size_t>(rank)]; }

  const int32_t rank_;
  const Pools* const pools_;
  CrossMemory* const cross_;
  Steps& steps_;
  bool may_lend_ = false;  // the collective is one that offers, and hears
  bool to_all_ = false;    // each hears each other one say who reads
  Places mine_;
  uint64_t size_ = 0;       // of what this rank lends
  std::vector<Lent> lent_;  // by rank
};

}  // namespace backplane::shm
