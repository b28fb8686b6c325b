// SPDX-License-Identifier: Apache-2.0
//
// The tags of MPI_Comm_create_group, by which MPI tells groups apart that threads of a process make at the same time.
// The members of a group propose the same few tags, which follow from a number that its rank 0 draws. Each member
// reserves those that no other group of its process has, and tells the others which (group.cpp). The group is made with
// the first one that all members have reserved.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>

namespace backplane::mpi {

// Thread-safe. One per process.
class CreationTags {
 public:
  static constexpr int kProposed = 16;  // per group

  // Those of one group, until it is made.
  class Reservation {
   public:
    // `number`: of the group, as its rank 0 has drawn it.
    Reservation(CreationTags& tags, uint64_t number);
    ~Reservation();
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

    // Bit i: the proposed tag i is reserved.
    uint32_t bits() const { return bits_; }
    // Returns the first tag of `common`, which all members have reserved, and gives the others back. Throws BP_RESOURCE
    // if there is none.
    int choose(uint32_t common);

   private:
    void keep(uint32_t bits);  // with the mutex held

    CreationTags& tags_;
    std::array<int, kProposed> proposed_{};
    uint32_t bits_ = 0;
  };

  // A number that no other process of the world draws.
  uint64_t draw(int world_rank) { return static_cast<uint64_t>(world_rank) << 32 | drawn_++; }

 private:
  std::atomic<uint32_t> drawn_ = 0;
  std::mutex mutex_;
  std::set<int> reserved_;
};

}  // namespace backplane::mpi
