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

#include "backplane/sdk/sockets.hpp"
#include "heap.hpp"
#include "memory.hpp"
#include "peers.hpp"

namespace backplane::shm {

// The segment, and who of the group is in it. Its constructor throws BP_RESOURCE.
class Segment {
 public:
  Segment(int fd, uint64_t heap_size, int32_t rank, int32_t world_size)
      : mapping_(fd, Layout(world_size).size()),
        view_(mapping_.data(), world_size),
        peers_(view_, rank, world_size),
        heaps_(another(fd), Layout(world_size).size(), heap_size, rank, world_size) {
    provide(view_.base(), view_.layout().lines(), "the members");  // whatever happens next, leaving writes there
  }
  ~Segment() { peers_.leave(); }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const View& view() const { return view_; }
  Peers& peers() { return peers_; }
  Heaps& heaps() { return heaps_; }

 private:
  const Mapping mapping_;
  const View view_;
  Peers peers_;
  Heaps heaps_;
};

// Blocks until all ranks share the segment, up to context.timeout_ns. Throws BP_UNSUPPORTED if they are not on one
// host, BP_TIMEOUT naming who did not come, BP_PEER_LOST, BP_RESOURCE, BP_CANCELLED. For two ranks or more.
std::unique_ptr<Segment> meet(const sdk::Context& context);

}  // namespace backplane::shm
