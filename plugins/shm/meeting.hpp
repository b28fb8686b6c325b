// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a group come to share a segment. Rank 0 makes it and says in the store where it is:
//
//   shm.0   memory without a name, which the others open as /proc/<pid>/fd/<n>
//   shm.1   only if one of them could not (another user or pid namespace): a file in /dev/shm
//   shm.file      set by a rank that could not
//   shm.trouble   why a rank cannot join at all; rank 0 then gives up, and says so where the memory was said to be
//
// When all have mapped it, rank 0 lets them go; then nothing but the mappings is left, and in each rank a descriptor
// for those that are still to come.
#pragma once

#include <memory>
#include <vector>

#include "memory.hpp"
#include "peers.hpp"
#include "pools.hpp"

namespace backplane::shm {

// The segment, and who of the group is in it. Its constructor throws BP_RESOURCE.
class Segment {
 public:
  Segment(int fd, uint64_t heap_size, const sdk::Context& context)
      : mapping_(fd, Layout(context.world_size).size()),
        view_(mapping_.data(), context.world_size),
        peers_(view_, context.rank, context.world_size),
        elders_(elders_of(context)),
        pools_(std::make_shared<Heaps>(another(fd), Layout(context.world_size).size(), heap_size, context.rank,
                                       context.world_size)) {
    provide(view_.base(), view_.layout().lines(), "the members");  // whatever happens next, leaving writes there
  }
  ~Segment() {
    retire_elder(pools_.own());
    peers_.leave();
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const View& view() const { return view_; }
  Peers& peers() { return peers_; }
  const Pools& pools() const { return pools_; }

  // Takes this rank's place. Throws BP_INVALID if another process has it.
  void enter(const sdk::Context& context);
  // What follows from what all have said of themselves. When all have come.
  void learn(const sdk::Context& context);

 private:
  const Mapping mapping_;
  const View view_;
  Peers peers_;
  std::vector<Elder> elders_;  // until all have come
  Pools pools_;
};

// Throws BP_UNSUPPORTED or BP_RESOURCE with the reason if so many ranks could not meet here, as far as one process can
// tell: makes what would be their segment, and takes one page of it for a moment.
void try_segment(int32_t world_size);

// Blocks until all ranks share the segment, up to context.timeout_ns. Throws BP_UNSUPPORTED if they are not on one
// host, BP_TIMEOUT naming who did not come, BP_PEER_LOST, BP_RESOURCE, BP_CANCELLED. For two ranks or more.
std::unique_ptr<Segment> meet(const sdk::Context& context);

}  // namespace backplane::shm
