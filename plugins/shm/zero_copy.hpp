// SPDX-License-Identifier: Apache-2.0
//
// Zero-copy access to the buffers of other ranks in a collective: buffers in a rank's heap, or inputs in its process
// (cross_memory.hpp). Other ranks read an exposed input in place instead of from slots. If all ranks expose inputs and
// outputs in heaps, they also write results in place. Each rank announces its buffers in the line of the collective's
// first step, and stages buffers that it does not expose. Ranks with and without exposed buffers can be mixed, at no
// cost for ranks without.
//
// A rank that exposes buffers may end the collective only when all users of them have published a later step. If the
// collective fails there is no such step. The rank then detaches its output, so that ranks that continue later, perhaps
// after being stopped for hours, do not write into memory that the program has reused.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "cross_memory.hpp"
#include "pools.hpp"
#include "steps.hpp"

namespace backplane::shm {

// The whole pages within `size` bytes at `data`, as offsets.
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

class ZeroCopy {
 public:
  // Smaller data are exchanged in one step: the final step of zero copy would cost more than the copy it saves.
  static constexpr uint64_t kMinBytes = (UINT64_C(4) << 10) + 1;  // bytes

  // `pools` may be null: no heaps. `cross` may be null: processes are not read.
  ZeroCopy(int32_t rank, int32_t world_size, const Pools* pools, CrossMemory* cross, Steps& steps)
      : rank_(rank), pools_(pools), cross_(cross), steps_(steps), ranks_(static_cast<size_t>(world_size)) {}

  // Starts a collective. Exposes buffers of `size` bytes; null: none. Small buffers are not exposed. With a scalar (one
  // element of `element` bytes, at most 16) others multiply this rank's input by it, exposed or staged.
  void expose(const std::byte* input, std::byte* output, uint64_t size, const std::byte* scalar = nullptr,
              uint64_t element = 0);
  // After expose: exposes the input in this process if it is not in a heap.
  void expose_in_process(const std::byte* input, uint64_t size);
  void expose_nothing() {
    if (is_active_) expose(nullptr, nullptr, 0);
    is_active_ = false;
  }
  // After a failure: invalidates this rank's exposed input, and replaces the whole pages of its output by private zero
  // pages, to which others cannot write.
  void revoke() noexcept;
  // Call when all exposed buffers have been read, before publishing the collective's last step (later their owners may
  // fail in the next collective). Throws BP_PEER_LOST if a rank has revoked its buffers.
  void check_revoked() const {
    if (is_active_) check_all_revoked();
  }
  // Ends a collective in which inputs may have been exposed: their owners wait until all, or `only_reader`, have read
  // them. Runs `meanwhile` before waiting.
  void finish(const StepContext& context, int32_t only_reader = -1, const std::function<void()>& meanwhile = {});
  // Writes the announcement into the line of the step, whose data must be in the slots. With `counts` and `displs` (in
  // elements) and an exposed input, this rank's slot lists the block of each rank.
  void announce(uint32_t step, const uint64_t* counts = nullptr, const uint64_t* displs = nullptr,
                uint64_t element = 0) const;
  // The part of exposed inputs that a rank reads: `size` bytes from `offset`, or as listed by the owner.
  struct Request {
    uint64_t size = 0;
    uint64_t offset = 0;
    bool is_listed = false;
    uint64_t alignment = 1;   // required of an input
    bool in_process = false;  // accept inputs exposed in processes
  };
  // Waits for and evaluates the announcement of another rank in `step`. Once per collective and rank.
  void learn(int32_t rank, uint32_t step, const Request& request, const StepContext& context);
  void learn_all(uint32_t step, const Request& request, const StepContext& context);

  // Copies from the requested part of an exposed input.
  void copy(int32_t rank, std::byte* to, const std::byte* from, uint64_t size) const;

  // The exposed input of this rank, or the requested part of another rank's (an address in its process if exposed
  // there); null: not exposed.
  const std::byte* input(int32_t rank) const { return at(rank).input; }
  std::byte* output(int32_t rank) const { return at(rank).output; }
  // The scalar of a rank, if the collective has scalars: one element.
  const std::byte* scalar(int32_t rank) const { return at(rank).scalar.data(); }
  bool any_input() const;
  bool all_inputs() const;
  bool all() const;

 private:
  void check_all_revoked() const;
  void check_revoked_by(int32_t rank) const;
  const std::byte* find(int32_t rank, uint64_t location, const Request& request) const;
  uint64_t listed_location(int32_t rank, uint32_t step, const Request& request, const StepContext& context) const;

  using Scalar = std::array<std::byte, 16>;
  struct RankState {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    alignas(16) Scalar scalar = {};
    bool in_process = false;  // of the input
  };
  struct BlockEntry {  // of the list in the slot
    uint64_t location = 0;
    uint64_t size = 0;  // bytes
  };
  static_assert(kMaxRanks * sizeof(BlockEntry) <= kSlotSize);
  struct Announcement {  // locations in the memory of the announcing rank; see Pools::location_of
    uint64_t input = 0;
    uint64_t output = 0;
    Scalar scalar = {};
  };
  const RankState& at(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]; }

  const int32_t rank_;
  const Pools* const pools_;
  CrossMemory* const cross_;
  Steps& steps_;
  bool is_active_ = false;  // the collective uses announcements
  Announcement mine_;
  uint64_t size_ = 0;             // of this rank's exposed buffers
  std::vector<RankState> ranks_;  // by rank
};

}  // namespace backplane::shm
