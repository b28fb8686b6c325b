// SPDX-License-Identifier: Apache-2.0
//
// Creation of the segment and its attachment by all ranks. Rank 0 creates it and publishes its address in the store:
// - shm.0: anonymous memory, which the others open as /proc/<pid>/fd/<n>
// - shm.1: a file in /dev/shm, only if a rank could not open the former (another user or pid namespace)
// - shm.file: set by such a rank
// - shm.join_failure: why a rank cannot join. Rank 0 then gives up and publishes that in place of the address.
//
// When all ranks have mapped it, rank 0 signals the start. Afterwards only the mappings remain, and a descriptor per
// rank for later mappings of heaps.
#pragma once

#include <memory>
#include <vector>

#include "memory.hpp"
#include "peers.hpp"
#include "pools.hpp"

namespace backplane::shm {

// The segment and the members of the group. The constructor throws BP_RESOURCE.
class Segment {
 public:
  // `staging`: bytes (layout.hpp).
  Segment(int fd, uint64_t staging, uint64_t heap_size, const sdk::Context& context)
      : mapping_(fd, Layout(context.world_size, staging).size()),
        view_(mapping_.data(), Layout(context.world_size, staging)),
        peers_(view_, context.rank, context.world_size),
        older_groups_(older_groups_of(context)),
        pools_(std::make_shared<Heaps>(duplicate(fd), view_.layout().size(), heap_size, context.rank,
                                       context.world_size)) {
    populate(view_.base(), view_.layout().lines(), "the members");  // written when leaving, whatever happens
  }
  ~Segment() {
    unregister_group(pools_.own());
    peers_.leave();
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const View& view() const { return view_; }
  Peers& peers() { return peers_; }
  const Pools& pools() const { return pools_; }

  // Registers this rank. Throws BP_INVALID if another process has already.
  void join(const sdk::Context& context);
  // Evaluates what all ranks have published about themselves. Call when all have joined.
  void learn(const sdk::Context& context);

 private:
  const Mapping mapping_;
  const View view_;
  Peers peers_;
  std::vector<OlderGroup> older_groups_;  // until all have joined
  Pools pools_;
};

// The layout of a group of this size with default options.
Layout default_layout(int32_t world_size);
// Such as "shared memory: 1.1 MiB, with messages between all ranks up to 2.1 MiB, and what programs allocate".
std::string describe_memory(const Layout& layout);

// Throws BP_UNSUPPORTED or BP_RESOURCE if a group of this size is not possible here, as far as one process can tell:
// creates such a segment and populates one page of it.
void check_segment(int32_t world_size);

// Blocks until all ranks share the segment, up to context.timeout_ns. Throws BP_UNSUPPORTED if they are not on one
// host, BP_TIMEOUT naming a missing rank, BP_PEER_LOST, BP_RESOURCE, BP_CANCELLED. For two or more ranks.
std::unique_ptr<Segment> attach(const sdk::Context& context);

}  // namespace backplane::shm
