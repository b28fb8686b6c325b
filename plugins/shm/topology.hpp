// SPDX-License-Identifier: Apache-2.0
//
// Caches and memory nodes of the host, and where the ranks of a group run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace backplane::shm {

// A bit per processor, numbered as by the kernel.
using Processors = std::array<uint64_t, 16>;

// Where a rank runs, according to its affinity: 1 + hwloc's number, or 0 if unknown or if it may run in several.
struct Locality {
  uint32_t package = 0;
  uint32_t node = 0;   // memory node
  uint32_t cache = 0;  // last-level cache
  bool operator==(const Locality&) const = default;
};

class Topology {
 public:
  // The topology of this host, detected once per process, which takes milliseconds. Empty if hwloc fails or was not
  // available at build time.
  static const Topology& of_host();
  // A synthetic topology in hwloc's syntax, such as "package:2 l3:2 core:4 pu:2"; null: this host's.
  explicit Topology(const char* description);

  Locality locality_of(const Processors& processors) const;
  // Bytes of the largest second-level cache; 0 if unknown.
  uint64_t second_level_cache() const { return second_level_cache_; }

 private:
  std::vector<Locality> localities_;  // by processor
  uint64_t second_level_cache_ = 0;
};

// Bytes of memory through which a rank should pass data to others; 0: as few as possible. AMD: twice the second-level
// cache, so that a line has left its reader's cache before it is written again, because taking it from there costs
// several times as much as taking it from the third level. Others: the two cost the same, and more staging only
// displaces the program's data (share/doc/design.md, "Staging").
uint64_t staging_for(bool is_amd, uint64_t second_level_cache);
// Whether this host's processors are AMD's.
bool is_amd_host();

// The other ranks in the order in which `rank` reads from them: same cache, same node, same package, others. Ranks that
// read from the same ones start at different ones.
std::vector<int32_t> reading_order(int32_t rank, const std::vector<Locality>& localities);

// Such as "2 memory nodes, 4 caches"; empty if unknown.
std::string describe_spread(const std::vector<Locality>& localities);

}  // namespace backplane::shm
