// SPDX-License-Identifier: Apache-2.0
//
// How the processors of the host share memory and caches, and what follows for the ranks of a group.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace backplane::shm {

// A bit for each processor, as the kernel numbers them.
using Processors = std::array<uint64_t, 16>;

// Where a rank runs, as far as the processors that it may use tell: each number is 1 + that of hwloc, or 0 if it is not
// known, or if the rank may run in several.
struct Site {
  uint32_t package = 0;
  uint32_t node = 0;   // of memory
  uint32_t cache = 0;  // of the last level
  bool operator==(const Site&) const = default;
};

class Topology {
 public:
  // This host's; found out once in a process, which takes milliseconds. Knows nothing if hwloc fails, or was not there
  // when this was built.
  static const Topology& of_host();
  // A made-up one, in hwloc's words, as in "package:2 l3:2 core:4 pu:2"; null: this host's.
  explicit Topology(const char* description);

  Site site_of(const Processors& processors) const;

 private:
  std::vector<Site> sites_;  // by processor
};

// The other ranks, as `rank` reads from them: first those that it shares a cache with, then those of its node, of its
// package, and the rest. Ranks that read from the same ones begin at different ones.
std::vector<int32_t> reading_order(int32_t rank, const std::vector<Site>& sites);

// Such as "2 memory nodes, 4 caches": between how many the ranks are spread, as far as it is known; else empty.
std::string spread(const std::vector<Site>& sites);

}  // namespace backplane::shm
